"""Whether anything that a cycle reads has changed: one number of all those rows, made in the database.

A row that is written has another place (`ctid`) and another writer (`xmin`), whatever was changed in it: no column and
no trigger has to say so. What followers write every few seconds without news (`as_of`, `seen_at`) is left out.
"""

from typing import Final

from sqlalchemy import text
from sqlalchemy.orm import Session

_ROW: Final = "bit_xor(hashtextextended(r.xmin::text || r.ctid::text, 0))"
_QUEUED: Final = "bit_xor(uuid_hash_extended(r.id, r.version))"  # thousands of rows: by what a cycle decodes them by
_TEXT: Final = "bit_xor(hashtextextended((to_jsonb(r) - 'as_of' - 'seen_at')::text, 0))"
_LIVE_ARRAYS: Final = "SELECT id FROM jobs WHERE array_size IS NOT NULL AND ended_at IS NULL"
_PARTS: Final = (
    (_QUEUED, "jobs r WHERE state = 'QUEUED'"),
    (_ROW, "jobs r WHERE id IN (SELECT job_id FROM attempts WHERE ended_at IS NULL)"),
    (_ROW, f"jobs r WHERE id IN ({_LIVE_ARRAYS})"),
    (_ROW, f"tasks r WHERE job_id IN ({_LIVE_ARRAYS}) AND state IN ('QUEUED', 'ADMITTED', 'RUNNING', 'STOPPING')"),
    (_ROW, "attempts r WHERE ended_at IS NULL"),
    (_ROW, "leases r WHERE state IN ('held', 'contingent')"),
    (_ROW, "accounts r WHERE kind = 'concurrency'"),
    (_ROW, "checkpoints r WHERE job_id IN (SELECT job_id FROM attempts WHERE ended_at IS NULL)"),
    (_ROW, "borrowings r WHERE until IS NULL"),
    *((_ROW, f"{table} r") for table in ("tenants", "quotas", "grants", "class_allowances", "flavors", "overrides")),
    *((_ROW, f"{table} r") for table in ("nodes", "foreign_use", "owners")),
    (_TEXT, "pools r"),
    (_TEXT, "backends r"),
)
_COUNTED: Final = ", ".join(
    f"(SELECT count(*)::text || ':' || coalesce({what}, 0) FROM {rows})"  # noqa: S608  (constants only)
    for what, rows in _PARTS
)
_FINGERPRINT = text(f"SELECT concat_ws(' ', {_COUNTED})")


def fingerprint(session: Session) -> str:
    """Equal to an earlier one: no row that a cycle looks at was written in between."""
    return str(session.execute(_FINGERPRINT).scalar_one())
