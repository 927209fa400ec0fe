"""What followers saw, kept: newer observations only, and a nudge to those attempts alone whose state of things changed.

Never changes the state of an attempt: its workflow does, from the row. Silence is not written at all.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from sqlalchemy import text
from sqlalchemy.orm import Session

from backends.types import Capabilities, Observation, Phase, PoolCapacity, Preemption
from gateway.ledger import direct, outbox
from gateway.ledger.codec import dumps, plain, to_ms
from policies.vocabulary import Pending

FRESH_MS: Final = 30_000  # an unchanged observation is written again only when the last one is so old
_ORDER: Final[Mapping[str, int]] = {
    Phase.ABSENT: 0,
    Phase.PREPARED: 1,
    Phase.PENDING: 2,
    Phase.RUNNING: 3,
    Phase.ENDED: 4,
}

_ROWS = text(
    """
    SELECT id, observed FROM attempts WHERE id = ANY(:keys) AND ended_at IS NULL ORDER BY id FOR NO KEY UPDATE
    """
)
_STORE = text(
    """
    UPDATE attempts SET observed = observed || CAST(o.data AS jsonb)
    FROM unnest(CAST(:ids AS text[]), CAST(:datas AS text[])) AS o(id, data) WHERE attempts.id = o.id
    """
)
_APPEND = text(
    """
    INSERT INTO observations (at, attempt_id, backend, phase, data)
    SELECT now(), o.id, :backend, o.phase, CAST(o.data AS jsonb)
    FROM unnest(CAST(:ids AS text[]), CAST(:phases AS text[]), CAST(:datas AS text[])) AS o(id, phase, data)
    """
)
# A hint for people: a job's row in other hands is left alone, since jobs are locked before attempts everywhere else.
_WAITS_THERE = text(
    """
    UPDATE jobs SET pending = w.pending
    FROM jsonb_to_recordset(CAST(:waits AS jsonb)) AS w(attempt text, pending jsonb)
    JOIN attempts ON attempts.id = w.attempt
    WHERE jobs.id = attempts.job_id AND jobs.id IN (
        SELECT id FROM jobs WHERE state = 'ADMITTED' AND id IN (SELECT job_id FROM attempts WHERE id = ANY(:ids))
        ORDER BY id FOR NO KEY UPDATE SKIP LOCKED)
    """
)
_ANSWERED = text(
    """
    UPDATE backends SET dark_since = NULL, seen_at = now(), problem = ''
    WHERE name = :name AND (dark_since IS NOT NULL OR problem <> '' OR seen_at IS NULL
        OR seen_at < now() - interval '5 seconds')
    RETURNING (SELECT b.dark_since FROM backends b WHERE b.name = :name) IS NOT NULL AS was_dark
    """
)
_DARK = text(
    """
    UPDATE backends SET dark_since = coalesce(dark_since, now()), problem = :problem
    WHERE name = :name AND (dark_since IS NULL OR problem <> :problem)
    RETURNING name
    """
)
_PROMISES = text(
    """
    UPDATE pools SET places_nodes = :nodes, place_first = :first, resizes = :resizes
    WHERE backend = :backend
        AND (places_nodes, place_first, resizes) IS DISTINCT FROM (:nodes, :first, :resizes) RETURNING name
    """
)
_REST = text(
    """
    UPDATE pools SET rest_reason = :reason,
        rested_until = greatest(rested_until, now() + make_interval(secs => :seconds))
    WHERE name = :pool
    """
)


def store(session: Session, backend: str, observations: Sequence[Observation]) -> int:
    """Keep what is newer; how many attempts changed and were nudged."""
    by_key = {one.handle.key: one for one in observations}  # of several in one call the last speaks
    kept: list[tuple[str, str, dict[str, Any]]] = []
    nudged: list[str] = []
    for row in session.execute(_ROWS, {"keys": sorted(by_key)}):
        one, before = by_key[row.id], row.observed.get(backend)
        if not _newer(before, one):
            continue
        after = _json(before, one)
        changed = before is None or _told(before) != _told(after)
        if changed:
            nudged.append(row.id)
        if changed or after["as_of_ms"] - before["as_of_ms"] >= FRESH_MS:
            kept.append((row.id, one.phase.value, after))
    if kept:
        ids = [key for key, _, _ in kept]
        session.execute(_STORE, {"ids": ids, "datas": [dumps({backend: data}) for _, _, data in kept]})
    told = [(key, phase, data) for key, phase, data in kept if key in set(nudged)]
    if told:
        session.execute(
            _APPEND,
            {
                "backend": backend,
                "ids": [key for key, _, _ in told],
                "phases": [phase for _, phase, _ in told],
                "datas": [dumps(data) for _, _, data in told],
            },
        )
        outbox.add(session, outbox.NUDGE, nudged)
        _say_where_it_waits(session, backend, told)
    return len(nudged)


def _say_where_it_waits(session: Session, backend: str, told: Sequence[tuple[str, str, dict[str, Any]]]) -> None:
    waits = {key: data["waiting"] for key, phase, data in told if phase == Phase.PENDING and data["waiting"]}
    if waits:
        rows = [{"attempt": key, "pending": _pending(backend, why)} for key, why in waits.items()]
        session.execute(_WAITS_THERE, {"waits": dumps(rows), "ids": list(waits)})


def _pending(backend: str, why: str) -> dict[str, Any]:
    return {
        "token": Pending.WAITING_IN_BACKEND.value,
        "numbers": {"backend": backend, "reason": why[:200]},
        "remedy": f"{backend} starts it when it can; past its time limit there it is placed elsewhere",
        "blocker": "",
        "starts_at": None,
    }


def _newer(before: Mapping[str, Any] | None, one: Observation) -> bool:
    """Monotone per (restarts, sequence). Equal ones, and Absent (which has neither), go by phase and clock."""
    if before is None:
        return True
    if before["phase"] == Phase.ENDED and one.restarts <= before["restarts"] and one.phase is not Phase.ENDED:
        return False  # Ended is sticky within one native restart count
    as_of_ms = to_ms(one.as_of) or 0
    if one.phase is Phase.ABSENT or before["phase"] == Phase.ABSENT:
        return bool(as_of_ms >= before["as_of_ms"])
    mine, known = (one.restarts, one.sequence), (before["restarts"], before["sequence"])
    if mine != known:
        return bool(mine > known)
    return bool(_ORDER[one.phase] >= _ORDER[before["phase"]] and as_of_ms >= before["as_of_ms"])


def _told(seen: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in seen.items() if name not in {"as_of_ms", "sequence"}}


def _json(before: Mapping[str, Any] | None, one: Observation) -> dict[str, Any]:
    """As workflows.messages.GroupSeen reads it. What an Absent cannot know stays as it was known."""
    end, notice = one.end, one.notice
    absent = one.phase is Phase.ABSENT and before is not None
    return {
        "phase": one.phase.value,
        "as_of_ms": to_ms(one.as_of),
        "restarts": before["restarts"] if absent and before else one.restarts,
        "sequence": before["sequence"] if absent and before else one.sequence,
        "started_ms": before["started_ms"] if absent and before else to_ms(one.started_at),
        "ended_ms": to_ms(one.ended_at),
        "cause": end.cause.value if end else "",
        "exit_code": end.exit_code if end else None,
        "failed_rank": end.failed_rank if end else None,
        "final": end.final if end else False,
        "stop_confirmed": one.stop_confirmed,
        "notice_kind": notice.kind.value if notice else "",
        "notice_deadline_ms": to_ms(notice.deadline) if notice else None,
        "notice_members": list(notice.members) if notice else [],
        "waiting": plain(one.waiting),
        "ready": one.ready,
        "codes": {str(rank): code for rank, code in end.codes.items()} if end else {},
        "bad_nodes": [plain(node) for node in end.bad_nodes] if end else [],
        "nodes": {str(rank): plain(node) for rank, node in one.nodes.items()},
        "detail": plain(end.detail[:2000]) if end else "",
    }


_OLD_NODES = text("SELECT to_jsonb(nodes) - 'pool' AS node FROM nodes WHERE pool = :pool ORDER BY name")
_POOL = text("SELECT as_of FROM pools WHERE name = :pool AND backend = :backend FOR NO KEY UPDATE")
_NODES = text(
    """
    INSERT INTO nodes (pool, name, count, accelerators, cpus, memory, disk, foreign_accelerators, foreign_cpus,
        foreign_memory, foreign_disk, schedulable, labels)
    SELECT :pool, n.name, n.count, n.accelerators, n.cpus, n.memory, n.disk, n.foreign_accelerators, n.foreign_cpus,
        n.foreign_memory, n.foreign_disk, n.schedulable, n.labels
    FROM jsonb_to_recordset(CAST(:nodes AS jsonb)) AS n(name text, count int, accelerators bigint, cpus bigint,
        memory bigint, disk bigint, foreign_accelerators bigint, foreign_cpus bigint, foreign_memory bigint,
        foreign_disk bigint, schedulable boolean, labels jsonb)
    """
)
_AS_OF = text("UPDATE pools SET as_of = :as_of WHERE name = :pool")


def capacity(
    session: Session, backend: str, pools: Sequence[PoolCapacity], capabilities: Capabilities | None = None
) -> bool:
    """Replace the nodes of these pools; True, and the arbiter woken, if anything changed. Older reports are dropped."""
    changed = capabilities is not None and _promises(session, backend, capabilities)
    for pool in sorted(pools, key=lambda pool: pool.pool):
        known = session.execute(_POOL, {"pool": pool.pool, "backend": backend}).one_or_none()
        if known is None or (known.as_of is not None and known.as_of > pool.as_of):
            continue
        nodes = sorted((_node(node) for node in pool.nodes), key=lambda node: str(node["name"]))
        before = sorted(
            (dict(row.node) for row in session.execute(_OLD_NODES, {"pool": pool.pool})), key=lambda n: str(n["name"])
        )
        if nodes != before:
            changed = True
            session.execute(text("DELETE FROM nodes WHERE pool = :pool"), {"pool": pool.pool})
            session.execute(_NODES, {"pool": pool.pool, "nodes": dumps(nodes)})
        changed = direct.store(session, pool) or changed
        session.execute(_AS_OF, {"pool": pool.pool, "as_of": pool.as_of})
        changed = changed or known.as_of is None
    if changed:
        outbox.wake_arbiter(session)
    return changed


def _promises(session: Session, backend: str, capabilities: Capabilities) -> bool:
    promised = {
        "nodes": capabilities.places_nodes,
        "first": capabilities.preemption is Preemption.PLACE_FIRST,
        "resizes": capabilities.resize,
        "backend": backend,
    }
    return session.execute(_PROMISES, promised).first() is not None


def _node(node: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "name": node.name,
        "count": node.count,
        "schedulable": node.schedulable,
        "labels": dict(node.labels),
    }
    for name in ("accelerators", "cpus", "memory", "disk"):
        found[name] = getattr(node.capacity, name)
        found[f"foreign_{name}"] = getattr(node.foreign, name)
    return found


def answered(session: Session, backend: str) -> None:
    """Not dark any more. Written at most every five seconds while nothing changes."""
    row = session.execute(_ANSWERED, {"name": backend}).one_or_none()
    if row is not None and row.was_dark:
        outbox.add(session, outbox.NUDGE, _living(session, backend))
        outbox.wake_arbiter(session)


def dark(session: Session, backend: str, problem: str) -> None:
    """It does not answer: nothing is freed and nothing expires; the arbiter stops placing there."""
    if session.execute(_DARK, {"name": backend, "problem": plain(problem[:500])}).one_or_none() is not None:
        outbox.wake_arbiter(session)


def rest_pool(session: Session, pool: str, seconds: int, reason: str) -> None:
    """Place nothing there for a while; a longer rest stays."""
    session.execute(_REST, {"pool": pool, "seconds": seconds, "reason": plain(reason[:200])})
    outbox.wake_arbiter(session)


def _living(session: Session, backend: str) -> list[str]:
    rows = session.execute(
        text("SELECT id FROM attempts WHERE ended_at IS NULL AND handles ? :backend ORDER BY id"), {"backend": backend}
    )
    return [row.id for row in rows]
