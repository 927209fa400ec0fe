"""What one cycle knows and has decided so far: the mutable side of `plan()`, private to it.

Everything here only ever shrinks during a cycle (room, quota, borrowable), which is what makes it sound to remember
that a request did not fit.
"""

from collections.abc import Iterable, Mapping, Sequence

from policies.decisions import Act, Loan, Reject, Wait
from policies.gang.fit import Gang, spread_of, take
from policies.order.qad import ranks
from policies.order.standing import Key, Standing
from policies.placement.filters import Candidate
from policies.placement.rooms import Part, Rooms
from policies.placement.shadow import Ahead, Release, Slot, Slots
from policies.preemption.candidates import OURS, overrides_at
from policies.preemption.cost import MILLI, milli_gpu
from policies.quota.loans import Lent, debts
from policies.quota.tree import Quotas, need_of
from policies.requests import Requests
from policies.settings import HOUR_MS, PolicySettings
from policies.snapshot import LiveAttempt, Pool, QueuedJob, Snapshot
from policies.vocabulary import PriorityClass, Resource, StopCause

_LOWER = {PriorityClass.P0: PriorityClass.P1, PriorityClass.P1: PriorityClass.P2}
RANKS: Mapping[PriorityClass, int] = {PriorityClass.P0: 0, PriorityClass.P1: 1, PriorityClass.P2: 2}


class State:
    """One cycle. `slots` are the promised starts by pool; `stoppable` the pools in which something may give way."""

    def __init__(self, snapshot: Snapshot, settings: PolicySettings, now_ms: int) -> None:
        self.snapshot, self.settings, self.now_ms = snapshot, settings, now_ms
        self.flavors = {flavor.name: flavor for flavor in snapshot.flavors}
        self.pools = tuple(sorted(snapshot.pools, key=lambda pool: pool.name))
        self.inactive = frozenset(tenant.path for tenant in snapshot.tenants if not tenant.active)
        self.live = tuple(sorted(snapshot.live, key=lambda attempt: attempt.id))
        self.rooms = Rooms(self.pools, self.live)
        self.usable = frozenset(pool.name for pool in self.pools if gives(pool, now_ms))
        self.quotas = Quotas(snapshot)
        self.lent = Lent(snapshot.borrowings, now_ms)
        self.debts = debts(snapshot.borrowings, now_ms, settings.debt_half_life_ms)
        self.words = overrides_at(snapshot.overrides, now_ms)
        self.klass = _classes(snapshot)
        self.requests = Requests(snapshot.queued, self.pools, self.flavors)
        # Attempts whose capacity already belongs to a waiter: nobody's victim, and nobody else's room.
        # A move's next attempt counts on the one before it too, but not for that one's place.
        movers_first = sorted(self.live, key=lambda a: not a.moved_from)
        self.promised: dict[str, str] = {v: a.id for a in movers_first for v in a.contingent_on}
        # One that is made smaller goes on: what it gives up is its waiter's, or free once that is settled.
        self.leaving = tuple(
            a.id for a in self.live if a.stopping not in {None, StopCause.RESIZE} and a.id not in self.promised
        )
        self.stoppable = frozenset(
            placed.pool
            for attempt in self.live
            if attempt.stopping is None or attempt.stopping in OURS
            for placed in attempt.placed
        )
        self.victims = 0
        self.searches = 0
        self.reclaimed = 0
        self.elastic = tuple(attempt for attempt in self.live if attempt.elastic is not None)
        self.resizing: set[str] = set()  # attempts that this cycle gives another size
        self.homes: dict[str, tuple[Candidate, ...]] = {}  # of a running attempt: where it might go on
        self.slots: dict[str, Slots] = {}
        self.closed: dict[str, str] = {}  # without backfill: pools that wait for their head, and its job
        self.rivals: dict[str, tuple[Key, QueuedJob]] = {}  # by pool: the last that was admitted, with its rank
        self.acts: list[Act] = []
        self.rejects: list[Reject] = []
        self.waits: list[Wait] = []
        self._promises = 0
        self._admitted: list[tuple[int | None, list[Part]]] = []

    def class_of(self, job: QueuedJob) -> PriorityClass:
        """The class in force: one lower where the allowance is used up."""
        return self.klass.get(job.id, job.klass) if self.klass else job.klass

    def lowered(self, job: QueuedJob) -> PriorityClass | None:
        """The class in force where it is not the job's own: what an Admit says."""
        return self.klass.get(job.id)

    def ends(self, job: QueuedJob) -> int | None:
        """When the job is over at the latest if it starts now; None: nobody knows."""
        return None if job.max_duration_ms is None else self.now_ms + job.max_duration_ms

    def count(self, job: QueuedJob, gang: Gang) -> tuple[Loan, ...]:
        """Count an admission's quota; who lends is settled before it shows in the trees."""
        need = need_of(gang)
        loans = self.borrow(job.tenant, need)
        self.quotas.add(job.tenant, need)
        return loans

    def borrow(self, tenant: str, need: Mapping[str, Mapping[Resource, int]]) -> tuple[Loan, ...]:
        """Who lends what of a need that is not counted yet."""
        loans: list[Loan] = []
        for flavor, wanted in sorted(need.items()):
            tree = self.quotas.accelerators(flavor)
            amount = wanted[Resource.ACCELERATORS]
            if tree is not None and amount:
                answer = tree.ask(tenant, amount)
                loans += self.lent.split(tree, tenant, flavor, answer.borrowed)
        for loan in loans:
            self.lent.add(loan)
        return tuple(loans)

    def occupy(self, job: QueuedJob, gang: Gang) -> None:
        """Take the places of an admission, and follow them in the shadow slots."""
        take(self.rooms.by_pool, gang)
        ends = self.ends(job)
        for placed in gang:
            if placed.pool in self.slots:
                self.slots[placed.pool].follow(spread_of(placed), ends)
        parts = [(p.pool, node, amount) for p in gang for node, amount in spread_of(p)]
        self._admitted.append((ends, parts))

    def in_the_way(self, job: QueuedJob, pool: str) -> tuple[Slots, int] | None:
        """The slots of a pool that the job would delay by running to its end: how many, soonest first."""
        slots = self.slots.get(pool)
        if slots is None:
            return None
        count = slots.in_the_way(RANKS[self.class_of(job)], self.ends(job))
        return (slots, count) if count else None

    def promise(self, slot: Slot) -> None:
        """Write down a slot that those who come later respect."""
        room = self.rooms.by_pool[slot.pool]
        self._promises += 1
        self.slots.setdefault(slot.pool, Slots(room)).add(slot, self._promises)

    def ahead(self, pools: Iterable[str]) -> Mapping[str, Ahead]:
        """What decides when these pools have room."""
        releases = self._releases()
        found: dict[str, Ahead] = {}
        for pool in pools:
            slots = self.slots[pool].slots if pool in self.slots else ()
            found[pool] = Ahead(self.rooms.by_pool[pool], releases.get(pool, ()), slots)
        return found

    def open_for_slots(self, pool: str) -> bool:
        """Whether the pool takes work and one more promise."""
        taken = len(self.slots[pool].slots) if pool in self.slots else 0
        return pool in self.usable and taken < self.settings.max_slots_per_pool

    def _releases(self) -> Mapping[str, Sequence[Release]]:
        """When what is taken now comes back, by pool. What is promised comes back with its waiter's end."""
        found: dict[str, list[Release]] = {}
        ends = {attempt.id: self._end_of(attempt) for attempt in self.live}
        for attempt in self.live:
            waiter = self.promised.get(attempt.id)
            at = ends.get(waiter) if waiter is not None else ends[attempt.id]
            _release(found, at, self.rooms.parts.get(attempt.id, ()))
        for at, parts in self._admitted:
            _release(found, at, parts)
        return found

    def _end_of(self, attempt: LiveAttempt) -> int | None:
        if attempt.stopping not in {None, StopCause.RESIZE}:
            grace = self.now_ms + self.settings.reclaim_grace_ms
            return grace if attempt.ends_by_ms is None else max(self.now_ms + 1, min(grace, attempt.ends_by_ms))
        return None if attempt.ends_by_ms is None else max(self.now_ms + 1, attempt.ends_by_ms)


def gives(pool: Pool, now_ms: int) -> bool:
    """Whether the pool takes new work: dark, draining and rested ones do not."""
    return not pool.dark and not pool.draining and pool.rested_until_ms <= now_ms


def standing(state: State, jobs: Sequence[QueuedJob]) -> Standing:
    """What the order policy may look at."""
    wanted: dict[str, dict[str, int]] = {}
    for job in jobs:
        request = state.requests.of(job)
        by_flavor = wanted.setdefault(job.tenant, {})
        for flavor in request.needs:
            by_flavor[flavor] = by_flavor.get(flavor, 0) + request.accelerators(flavor)
    running: dict[tuple[str, PriorityClass, str], int] = {}
    for attempt in state.live:
        whose = (attempt.tenant, attempt.klass, attempt.user)
        running[whose] = running.get(whose, 0) + 1
    tenants = sorted({job.tenant for job in jobs})
    return Standing(state.settings, state.now_ms, ranks(state.quotas, wanted, tenants), running, state.klass)


def _classes(snapshot: Snapshot) -> dict[str, PriorityClass]:
    """Jobs that run one class lower: an allowance on their path has no hour left for them beside what runs.

    A path without any allowance is not judged here: whether the class may be used at all is decided at the submit.
    """
    left = {(row.tenant, row.klass): row.left_gpu_ms for row in snapshot.allowances}
    if not left:
        return {}
    for attempt in snapshot.live:
        for path in _lineage(attempt.tenant):
            if (path, attempt.klass) in left:
                left[path, attempt.klass] -= milli_gpu(attempt) * HOUR_MS // MILLI
    found: dict[str, PriorityClass] = {}
    for job in snapshot.queued:
        klass = job.klass
        if klass not in _LOWER:
            continue
        hour = sum(group.per_member.accelerators * group.replicas for group in job.groups) * HOUR_MS // MILLI
        while hour and klass in _LOWER and any(left.get((path, klass), hour) < hour for path in _lineage(job.tenant)):
            klass = _LOWER[klass]
        if klass is not job.klass:
            found[job.id] = klass
    return found


def _lineage(path: str) -> Iterable[str]:
    while path:
        yield path
        path = path.rpartition("/")[0]


def _release(found: dict[str, list[Release]], at: int | None, parts: Iterable[Part]) -> None:
    if at is None:
        return
    by_pool: dict[str, list[Part]] = {}
    for part in parts:
        by_pool.setdefault(part[0], []).append(part)
    for pool, own in by_pool.items():
        found.setdefault(pool, []).append(Release(at, tuple(own)))
