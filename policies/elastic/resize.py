"""Running elastic jobs at the end of a cycle: sizes that users asked for, growths taken back, growth into what is free.

Runs after the queue, so that whoever waits comes first: growth takes only capacity that no shadow slot, no lender and
no job of its class or above is waiting for. Stops nobody and shrinks nobody for somebody else.
"""

from collections.abc import Sequence
from dataclasses import replace

from policies.cycle import RANKS, State
from policies.decisions import Act, Loan, Resize, Wait, Why
from policies.elastic.growth import keeps, worthwhile
from policies.elastic.places import grown, shrunk
from policies.elastic.shrink import cooled_down, may_resize
from policies.gang.fit import fit_in_one, public
from policies.gates import REMEDIES
from policies.placement.filters import Candidate
from policies.quota.tree import Answer, need_of
from policies.snapshot import Elastic, GroupRequest, LiveAttempt, Placed, QueuedJob
from policies.vocabulary import Pending, Resource

_WANTS_ROOM = frozenset(
    {
        Pending.WAITING_FOR_CAPACITY,
        Pending.TOPOLOGY_UNAVAILABLE,
        Pending.BEHIND_RESERVATION,
        Pending.WAITING_FOR_QUOTA,
        Pending.WAITING_FOR_SIZE,
    }
)


def resize(jobs: Sequence[QueuedJob], state: State) -> None:
    """Write the Resizes of this cycle into the state. `jobs` are those that were considered."""
    if not state.elastic:
        return
    wanting = _wanting(jobs, state)
    for attempt in sorted(state.elastic, key=lambda one: (RANKS[one.klass], one.leased_ms, one.id)):
        elastic = attempt.elastic
        if elastic is None or not may_resize(attempt, elastic, state):
            continue
        target = elastic.sizes.at_most(elastic.sizes.target)
        asked = elastic.wished or cooled_down(elastic, state)
        if target is not None and target < elastic.size and asked:
            _shrink(attempt, elastic, target, Why("Wished", {"from": elastic.size, "to": target}), state)
        elif (back := _not_kept(elastic, state)) is not None:
            _shrink(attempt, elastic, *back, state)
        elif target is not None and target > elastic.size:
            _grow(attempt, elastic, target, wanting, state)


def _wanting(jobs: Sequence[QueuedJob], state: State) -> dict[str, list[QueuedJob]]:
    """Jobs that wait for room or quota, by every pool that would do for them."""
    waits = {(wait.job, wait.chunk) for wait in state.waits if wait.pending in _WANTS_ROOM}
    found: dict[str, list[QueuedJob]] = {}
    for job in jobs:
        if (job.id, job.chunk) in waits:
            for choice in state.requests.of(job).choices:
                found.setdefault(choice.pool.name, []).append(job)
    return found


def _not_kept(elastic: Elastic, state: State) -> tuple[int, Why] | None:
    """The size before a growth that did not bring enough, judged once both rates are known."""
    if elastic.before is None or not elastic.rate:
        return None
    size, rate = elastic.before
    smaller = rate > 0 and size < elastic.size and elastic.sizes.valid(size)
    if not smaller or keeps((size, rate), (elastic.size, elastic.rate), state.settings.keep_growth_permille):
        return None
    numbers: dict[str, int | str] = {"from": elastic.size, "to": size, "rate": elastic.rate, "rate_before": rate}
    return size, Why("GrowthNotKept", numbers)


def _shrink(attempt: LiveAttempt, elastic: Elastic, size: int, why: Why, state: State) -> None:
    placed = shrunk(attempt.placed, elastic.group, size)
    state.resizing.add(attempt.id)
    state.acts.append(Act(resizes=(_decision(attempt, elastic, size, placed, why),)))


def _decision(  # noqa: PLR0917  (private, two callers' facts)
    attempt: LiveAttempt,
    elastic: Elastic,
    size: int,
    placed: tuple[Placed, ...],
    why: Why,
    loans: tuple[Loan, ...] = (),
) -> Resize:
    return Resize(
        attempt=attempt.id,
        version=attempt.version,
        job=attempt.job,
        job_version=elastic.job_version,
        group=elastic.group,
        replicas=size,
        placed=placed,
        why=why,
        in_place=elastic.in_place,
        loans=loans,
    )


def _grow(
    attempt: LiveAttempt, elastic: Elastic, target: int, wanting: dict[str, list[QueuedJob]], state: State
) -> None:
    if not elastic.wished and not (cooled_down(elastic, state) and _tries_again(elastic, state)):
        return
    part = next(part for part in attempt.placed if part.group == elastic.group)
    pool = next((pool for pool in state.pools if pool.name == part.pool), None)
    flavor = state.flavors.get(part.flavor)
    if pool is None or flavor is None or pool.name not in state.usable:
        _wait(attempt, elastic, Pending.WAITING_FOR_CAPACITY, part.pool, state)
        return
    rival = _rival(attempt, wanting.get(pool.name, ()), flavor.name, state)
    if rival is not None:
        _wait(attempt, elastic, Pending.BEHIND_RESERVATION, rival.id, state)
        return
    more, answer = _more(attempt, elastic, part, target, Candidate(pool, flavor), state)
    if more is None:
        limit = answer.limit.path if answer is not None and answer.limit is not None else ""
        token = Pending.TENANT_LIMIT if limit else Pending.WAITING_FOR_QUOTA
        _wait(
            attempt, elastic, token if answer is not None else Pending.WAITING_FOR_CAPACITY, limit or pool.name, state
        )
        return
    size = elastic.size + more.replicas
    remaining_ms = None if attempt.ends_by_ms is None else max(0, attempt.ends_by_ms - state.now_ms)
    cheap = elastic.wished or elastic.in_place
    if not cheap and not worthwhile(elastic.size, size, remaining_ms, attempt.restart_ms):
        return
    _take(attempt, elastic, more, size, state)


def _tries_again(elastic: Elastic, state: State) -> bool:
    return elastic.unkept_ms is None or state.now_ms - elastic.unkept_ms >= state.settings.growth_retry_ms


def _rival(attempt: LiveAttempt, wanting: Sequence[QueuedJob], flavor: str, state: State) -> QueuedJob | None:
    """Who has the better claim to what is free: its class or a higher one, or an owner within its guarantee."""
    tree = state.quotas.accelerators(flavor)
    for job in wanting:
        if RANKS[state.class_of(job)] <= RANKS[attempt.klass]:
            return job
        needs = state.requests.of(job).needs.get(flavor)
        amount = needs[flavor][Resource.ACCELERATORS] if needs else 0
        if tree is not None and amount and tree.ask(job.tenant, amount).entitled:
            return job
    return None


def _more(  # noqa: PLR0917  (private, one caller's facts)
    attempt: LiveAttempt, elastic: Elastic, part: Placed, target: int, candidate: Candidate, state: State
) -> tuple[Placed | None, Answer | None]:
    """The largest growth that has room past every slot, and is within quota; else what quota said."""
    sizes, answer = elastic.sizes, None
    size = sizes.at_most(target)
    while size is not None and size > elastic.size:
        wish = _as_job(attempt, elastic, part, size)
        room = state.rooms.by_pool[candidate.pool.name]
        if (way := state.in_the_way(wish, candidate.pool.name)) is not None:
            slots, count = way
            room = slots.past(count)
        gang = fit_in_one(wish, {candidate.pool.name: room}, candidate)
        if gang is None:
            return None, answer
        fits = elastic.size + gang[0].replicas
        answer, _, _ = state.quotas.ask(attempt.tenant, _without_job(gang))
        if answer.ok and sizes.valid(fits):
            return gang[0], None
        size = sizes.at_most(fits - 1)
    return None, answer


def _as_job(attempt: LiveAttempt, elastic: Elastic, part: Placed, size: int) -> QueuedJob:
    """The members that would be added, as a job that asks for them."""
    step = elastic.sizes.step
    first = (elastic.sizes.at_least(elastic.size + 1) or size) - elastic.size
    group = GroupRequest(
        elastic.group, size - elastic.size, min(first, size - elastic.size), part.per_member, step=step
    )
    ends_in_ms = None if attempt.ends_by_ms is None else max(1, attempt.ends_by_ms - attempt.leased_ms)
    return QueuedJob(
        id=attempt.job,
        tenant=attempt.tenant,
        user=attempt.user,
        kind=attempt.kind,
        klass=attempt.klass,
        submitted_ms=attempt.leased_ms,
        version=elastic.job_version,
        groups=(group,),
        placement=elastic.placement,
        max_duration_ms=ends_in_ms,
    )


def _without_job(gang: Sequence[Placed]) -> dict[str, dict[Resource, int]]:
    return {flavor: {**wanted, Resource.JOBS: 0} for flavor, wanted in need_of(gang).items()}


def _take(attempt: LiveAttempt, elastic: Elastic, more: Placed, size: int, state: State) -> None:
    wish = replace(_as_job(attempt, elastic, more, size), id=attempt.id)
    need = _without_job((more,))
    loans = state.borrow(attempt.tenant, need)
    state.quotas.add(attempt.tenant, need)
    state.occupy(wish, (more,))
    state.resizing.add(attempt.id)
    (shown,) = public((more,), state.rooms.by_pool)
    numbers: dict[str, int | str] = {"from": elastic.size, "to": size, "pool": more.pool}
    why = Why("Wished" if elastic.wished else "Grown", numbers)
    placed = grown(attempt.placed, elastic.group, shown)
    state.acts.append(Act(resizes=(_decision(attempt, elastic, size, placed, why, loans),)))


def _wait(attempt: LiveAttempt, elastic: Elastic, token: Pending, blocker: str, state: State) -> None:
    """Told only where somebody asked for the size: a growth that nobody asked for waits in silence."""
    if not elastic.wished:
        return
    numbers: dict[str, int | str] = {"size": elastic.size, "asked": elastic.sizes.target}
    why = Why(token.value, numbers, REMEDIES.get(token, ""))
    state.waits.append(Wait(attempt.job, elastic.job_version, token, why, blocker))
