"""Free room per pool and node, by the one formula of the design; the only mutable view of capacity in a cycle.

Plannable = total − unschedulable − foreign − held leases − the part of contingent leases that their victims do not
cover, per node. A pool that places by itself names no nodes for our leases: they are packed into its nodes as the
backend probably did, and what does not fit there is an overhang on the total. Decides nothing about who gets it.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from policies.snapshot import LiveAttempt, Node, Placed, Pool, Resources

Amounts = tuple[int, int, int, int]
Spread = tuple[tuple[str, int], ...]
"""Node name and members on it."""
Labels = tuple[tuple[str, str], ...]

NOTHING: Final[Amounts] = (0, 0, 0, 0)


def amounts(resources: Resources) -> Amounts:
    """The tuple that the inner loops count in: accelerators, cpus, memory, disk."""
    return (resources.accelerators, resources.cpus, resources.memory, resources.disk)


def plus(a: Amounts, b: Amounts) -> Amounts:
    return (a[0] + b[0], a[1] + b[1], a[2] + b[2], a[3] + b[3])


def minus(a: Amounts, b: Amounts) -> Amounts:
    return (a[0] - b[0], a[1] - b[1], a[2] - b[2], a[3] - b[3])


def times(a: Amounts, count: int) -> Amounts:
    return (a[0] * count, a[1] * count, a[2] * count, a[3] * count)


def least(a: Amounts, b: Amounts) -> Amounts:
    return (min(a[0], b[0]), min(a[1], b[1]), min(a[2], b[2]), min(a[3], b[3]))


def most(a: Amounts, b: Amounts) -> Amounts:
    return (max(a[0], b[0]), max(a[1], b[1]), max(a[2], b[2]), max(a[3], b[3]))


def members_in(free: Amounts, each: Amounts) -> int:
    """How many equal members fit in `free`; a member that asks nothing fits any number of times."""
    most = 1 << 40
    for have, ask in zip(free, each, strict=True):
        if ask > 0:
            if have < ask:
                return 0
            most = min(most, have // ask)
    return most


class Room:
    """Free room of one pool. Nodes with equal labels and equal free amounts share a bucket, so that a fit looks at
    distinct shapes and not at nodes.
    """

    def __init__(self, pool: Pool, free: Mapping[str, Amounts], labels: Mapping[str, Labels]) -> None:
        self.pool = pool
        self.free: dict[str, Amounts] = dict(free)
        self.labels = labels
        self.overhang = NOTHING
        self._total: Amounts | None = None
        self._buckets: dict[tuple[Labels, Amounts], list[str]] = {}
        for name in sorted(self.free):
            self._buckets.setdefault((labels[name], self.free[name]), []).append(name)

    @classmethod
    def empty(cls, pool: Pool) -> "Room":
        """The pool with nothing in it and every node back."""
        nodes = list(_units(pool, schedulable_only=False))
        return cls(
            pool,
            {name: amounts(node.capacity) for name, node in nodes},
            {name: tuple(sorted(node.labels.items())) for name, node in nodes},
        )

    def total(self) -> Amounts:
        """What is free in all nodes together, the overhang taken off, never negative; remembered until it changes."""
        if self._total is None:
            self._total = self._sum()
        return self._total

    def _sum(self) -> Amounts:
        sums = [0, 0, 0, 0]
        for (_, free), names in self._buckets.items():
            for at in range(4):
                sums[at] += max(0, free[at]) * len(names)
        return (
            max(0, sums[0] - self.overhang[0]),
            max(0, sums[1] - self.overhang[1]),
            max(0, sums[2] - self.overhang[2]),
            max(0, sums[3] - self.overhang[3]),
        )

    def put(self, name: str, free: Amounts) -> None:
        """Set what is free on one node. A node that is not there (gone, unschedulable) gives and takes nothing."""
        before = self.free.get(name)
        if before is None or before == free:
            return
        self._total = None
        labels = self.labels[name]
        bucket = self._buckets[labels, before]
        del bucket[bisect_left(bucket, name)]
        if not bucket:
            del self._buckets[labels, before]
        self.free[name] = free
        insort(self._buckets.setdefault((labels, free), []), name)

    def hang_over(self, amount: Amounts) -> None:
        """Count what is held somewhere in the pool and fits none of its nodes."""
        self.overhang = plus(self.overhang, amount)
        self._total = None

    def take(self, spread: Iterable[tuple[str, Amounts]]) -> None:
        """Take amounts from nodes."""
        for name, amount in spread:
            if name in self.free:
                self.put(name, minus(self.free[name], amount))

    def give(self, spread: Iterable[tuple[str, Amounts]]) -> None:
        """The reverse of take."""
        for name, amount in spread:
            if name in self.free:
                self.put(name, plus(self.free[name], amount))

    def copy(self) -> "Room":
        """An independent room with the same content."""
        other = Room(self.pool, self.free, self.labels)
        other.overhang = self.overhang
        return other

    def shapes(
        self, each: Amounts, allows: Callable[[Labels], bool] | None, avoid: frozenset[str]
    ) -> list[tuple[int, Amounts, list[str]]]:
        """(members that fit on one node, its free amounts, names) for every distinct shape that takes a member."""
        found = []
        for (labels, free), names in self._buckets.items():
            if (most := members_in(free, each)) and (allows is None or allows(labels)):
                usable = names if not avoid else [name for name in names if name not in avoid]
                if usable:
                    found.append((most, free, usable))
        return found

    def spread(
        self,
        each: Amounts,
        replicas: int,
        allows: Callable[[Labels], bool] | None = None,
        avoid: frozenset[str] = frozenset(),
    ) -> Spread | None:
        """Nodes for all members or None: few nodes first, then the node that is left with the least (best fit)."""
        shapes = self.shapes(each, allows, avoid)
        if sum(most * len(names) for most, _, names in shapes) < replicas:
            return None
        if self.overhang != NOTHING and members_in(self.total(), each) < replicas:
            return None
        if whole := [(free, names[0]) for most, free, names in shapes if most >= replicas]:
            return ((min(whole)[1], replicas),)
        # Big pieces first keeps a gang on few nodes; the last piece goes where it leaves the smallest remainder.
        shapes.sort(key=lambda shape: (-min(shape[0], replicas), shape[1], shape[2][0]))
        left = replicas
        chosen: list[tuple[str, int]] = []
        used: set[str] = set()
        for most, _, names in shapes:
            if most > left:
                continue
            for name in names:
                if most > left:
                    break
                chosen.append((name, most))
                used.add(name)
                left -= most
            if not left:
                return tuple(chosen)
        # What is left is less than any unused shape takes: one node, the tightest.
        rest = [(free, name) for most, free, names in shapes if most >= left for name in names if name not in used]
        if not rest:
            return None
        chosen.append((min(rest)[1], left))
        return tuple(chosen)


Part = tuple[str, str, Amounts]
"""Pool, node and amount that one attempt holds there."""


class Rooms:
    """The rooms of all pools and what each live attempt holds in them."""

    def __init__(self, pools: Iterable[Pool], live: Iterable[LiveAttempt]) -> None:
        self.by_pool: dict[str, Room] = {}
        for pool in pools:
            free: dict[str, Amounts] = {}
            labels: dict[str, Labels] = {}
            for name, node in _units(pool):
                free[name] = minus(amounts(node.capacity), amounts(node.foreign))
                labels[name] = tuple(sorted(node.labels.items()))
            self.by_pool[pool.name] = Room(pool, free, labels)
        self.parts: dict[str, tuple[Part, ...]] = {}
        self.leaves: dict[str, tuple[Part, ...]] = {}  # of those that are only being made smaller
        # Those that wait for others come last: what their victims hold is known by then.
        for attempt in sorted(live, key=lambda a: (bool(a.contingent_on), a.leased_ms, a.id)):
            self._hold(attempt)

    def release(self, attempt: str) -> None:
        """What if this attempt were gone."""
        for pool, node, amount in self.parts.get(attempt, ()):
            self.by_pool[pool].give(((node, amount),))

    def retake(self, attempt: str) -> None:
        """The reverse of release."""
        for pool, node, amount in self.parts.get(attempt, ()):
            self.by_pool[pool].take(((node, amount),))

    def _hold(self, attempt: LiveAttempt) -> None:
        cover: dict[tuple[str, str], Amounts] = {}
        for victim in attempt.contingent_on:
            for pool, node, amount in self.leaves.get(victim, self.parts.get(victim, ())):
                at = (pool, node if self.by_pool[pool].pool.places_nodes else "")
                cover[at] = plus(cover.get(at, NOTHING), amount)
        parts: list[Part] = []
        for placed in attempt.placed:
            room = self.by_pool.get(placed.pool)
            if room is None:
                continue
            held = self._named(room, placed, cover) if placed.nodes else self._packed(room, placed, cover)
            room.take(held)
            parts += [(placed.pool, node, amount) for node, amount in held]
        self.parts[attempt.id] = tuple(parts)
        if attempt.keeps:
            self.leaves[attempt.id] = tail(self.parts[attempt.id], attempt.leaves)

    @staticmethod
    def _named(room: Room, placed: Placed, cover: dict[tuple[str, str], Amounts]) -> list[tuple[str, Amounts]]:
        held = []
        for node, members in placed.nodes:
            own = times(amounts(placed.per_member), members)
            held.append((node, _beyond(own, (room.pool.name, node), cover)))
        return held

    @staticmethod
    def _packed(room: Room, placed: Placed, cover: dict[tuple[str, str], Amounts]) -> list[tuple[str, Amounts]]:
        each = amounts(placed.per_member)
        own = _beyond(amounts(placed.total), (room.pool.name, ""), cover)
        if not any(own):
            return []
        members = max(-(-have // ask) for have, ask in zip(own, each, strict=True) if ask)
        spread = room.spread(each, members)
        if spread is None:
            room.hang_over(own)
            return []
        return [(node, times(each, count)) for node, count in spread]


def tail(parts: Iterable[Part], leaves: Iterable[Placed]) -> tuple[Part, ...]:
    """Where the members that leave hold what they hold; of those on no named node, the last of the attempt's parts."""
    mine = list(parts)
    found: list[Part] = []
    for placed in leaves:
        each = amounts(placed.per_member)
        found += [(placed.pool, node, times(each, members)) for node, members in placed.nodes]
        rest = NOTHING if placed.nodes else amounts(placed.total)
        for pool, node, amount in reversed(mine):
            if pool == placed.pool and any(rest):
                found.append((pool, node, least(amount, rest)))
                rest = minus(rest, least(amount, rest))
    return tuple(found)


def _beyond(own: Amounts, at: tuple[str, str], cover: dict[tuple[str, str], Amounts]) -> Amounts:
    covered = cover.get(at)
    if covered is None:
        return own
    used = least(own, covered)
    cover[at] = minus(covered, used)
    return minus(own, used)


def _units(pool: Pool, *, schedulable_only: bool = True) -> Iterable[tuple[str, Node]]:
    for node in pool.nodes:
        if schedulable_only and not node.schedulable:
            continue
        if node.count == 1:
            yield node.name, node
        else:
            for n in range(node.count):
                yield f"{node.name}#{n:06d}", node
