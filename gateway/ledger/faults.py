"""What is wrong with operators' documents as a worker finds them when it builds backends: kept beside their rows.

Nothing new is placed where something is wrong. A backend that is not there at all is dark as well: what lives on it can
neither be seen nor stopped, so nothing is freed and nothing expires.
"""

from collections.abc import Mapping

from sqlalchemy import text
from sqlalchemy.orm import Session

from gateway.ledger import outbox
from gateway.ledger.codec import plain

_BACKEND = text(
    """
    UPDATE backends SET misconfigured = :problem,
        dark_since = CASE WHEN :gone THEN coalesce(dark_since, now()) ELSE dark_since END
    WHERE name = :name AND (misconfigured <> :problem OR (:gone AND dark_since IS NULL)) RETURNING name
    """
)
_POOL = text(
    "UPDATE pools SET misconfigured = :problem WHERE name = :name AND misconfigured <> :problem RETURNING name"
)


def store(session: Session, backend: str, problem: str, pools: Mapping[str, str], *, gone: bool) -> None:
    """`problem`: of the whole backend, `pools`: of each of its pools; "" for none. `gone`: nobody serves it."""
    said = {"name": backend, "problem": plain(problem[:500]), "gone": gone}
    changed = session.execute(_BACKEND, said).one_or_none() is not None
    for name in sorted(pools):
        said = {"name": name, "problem": plain(pools[name][:500])}
        changed = session.execute(_POOL, said).one_or_none() is not None or changed
    if changed:
        outbox.wake_arbiter(session)
