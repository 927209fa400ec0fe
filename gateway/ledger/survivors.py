"""A notice to some members of an elastic job: the others go on without a requeue, at the largest size that they make
(POLICIES §9). The job saves as one, and its next attempt runs where the survivors are, on their part of the lease.

Only where the pool places nodes: elsewhere nobody knows which members would be left.
"""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import Session

from gateway.ledger.codec import dumps, placed_of, sizes_of
from gateway.ledger.resizing import wish_json
from policies.elastic.places import size_of, without_nodes
from policies.snapshot import Placed
from policies.vocabulary import AttemptState, JobKind

_ROW = text(
    """
    SELECT a.state, a.placed, a.observed, j.kind, j.request, j.want_size,
        coalesce((SELECT reshardable FROM checkpoints c WHERE c.job_id = a.job_id AND verified >= 1
            ORDER BY step DESC, attempt_number DESC LIMIT 1), true) AS reshardable
    FROM attempts a JOIN jobs j ON j.id = a.job_id WHERE a.id = :id
    """
)
_WRITE = text("UPDATE attempts SET resize_to = CAST(:to AS jsonb) WHERE id = :id AND ended_at IS NULL")


def of(row: Mapping[Any, Any], *, reshardable: bool) -> tuple[Placed, ...]:
    """The placement of the survivors; empty where they are too few, or the job cannot go on at another size."""
    elastic = row["request"].get("elastic")
    if elastic is None or not elastic["reshard"] or not reshardable or row["kind"] == JobKind.INFERENCE:
        return ()
    placed = placed_of(row["placed"])
    gone = _nodes_taken(row["observed"])
    if row["state"] != AttemptState.RUNNING or not gone or any(not part.nodes for part in placed):
        return ()
    group = elastic["group"]
    on_them = {part.group: sum(n for node, n in part.nodes if node in gone) for part in placed}
    if any(members for name, members in on_them.items() if name != group):
        return ()
    size = sizes_of(elastic, row["want_size"]).survive(size_of(placed, group), on_them.get(group, 0))
    return () if size is None or not on_them.get(group) else without_nodes(placed, group, gone, size)


def write(session: Session, attempt_id: str) -> bool:
    """Write where the survivors go on; False: there is nowhere to go on."""
    row = session.execute(_ROW, {"id": attempt_id}).mappings().one_or_none()
    placed = of(row, reshardable=row["reshardable"]) if row is not None else ()
    if row is None or not placed:
        return False
    group = row["request"]["elastic"]["group"]
    before, after = size_of(placed_of(row["placed"]), group), size_of(placed, group)
    numbers = {"from": before, "to": after}
    wish = wish_json(group, placed, before=before, token="SurvivedLoss", numbers=numbers, lost=True)  # noqa: S106  (a word)
    session.execute(_WRITE, {"id": attempt_id, "to": dumps(wish)})
    return True


def _nodes_taken(observed: Mapping[str, Any]) -> frozenset[str]:
    """Nodes of members to which a provider gave notice. Of several backends it is not known whose rank is where."""
    if len(observed) != 1:
        return frozenset()
    (seen,) = observed.values()
    if seen.get("notice_kind") != "revoke":
        return frozenset()
    nodes = seen.get("nodes", {})
    return frozenset(nodes[str(rank)] for rank in seen.get("notice_members", ()) if str(rank) in nodes)
