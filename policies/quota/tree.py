"""One tree per flavor and resource: who may take how much, and whether it is theirs or borrowed.

A level's claim is what it uses plus what its children keep of their guarantees: a guarantee is kept but for its
`lendable` part. Borrowing is allowed while the roots' claims fit the capacity, so no lender's kept part is ever taken.
Counts only; who goes first and what is free on nodes is decided elsewhere.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from policies.placement.rooms import amounts
from policies.snapshot import LiveAttempt, Placed, Pool, Quota, Snapshot, Usage
from policies.vocabulary import Resource

_AT: Final = {Resource.ACCELERATORS: 0, Resource.CPUS: 1, Resource.MEMORY: 2}


@dataclass(slots=True)
class Level:
    """One tenant in one tree. `kept` is what its children hold back beyond their use."""

    path: str
    parent: "Level | None"
    min: int = 0
    max: int | None = None
    lendable: int = 0
    use: int = 0
    observed: int = 0  # the part of `use` that is direct use
    kept: int = 0
    known: bool = False  # has a quota row of its own
    children: "list[Level]" = field(default_factory=list)

    @property
    def claim(self) -> int:
        """Use, and what children hold back."""
        return self.use + self.kept

    @property
    def reserved(self) -> int:
        """What nobody outside may take: the claim, or the part of the guarantee that is not lendable."""
        return max(self.claim, self.min - self.lendable)

    @property
    def excess(self) -> int:
        """How much of its use is above its guarantee."""
        return max(0, self.use - self.min)

    @property
    def idle_lendable(self) -> int:
        """How much of its idle guarantee others may use."""
        return max(0, min(self.lendable, self.min - self.use))


@dataclass(frozen=True, slots=True)
class Answer:
    """What a tree says to an amount.

    limit: the level whose max would be passed, None if none. short: by how much idle guarantees that are not lendable
    stand in the way (0: they do not). entitled: within a guarantee, so it may be reclaimed. borrowed: how much lies
    above the nearest guarantee.
    """

    limit: Level | None = None
    short: int = 0
    entitled: bool = False
    borrowed: int = 0

    @property
    def ok(self) -> bool:
        """Nothing against it."""
        return self.limit is None and not self.short

    @property
    def badness(self) -> tuple[bool, int, bool, int]:
        """By this answers to the parts of one wish are compared."""
        return (self.limit is not None, self.short, not self.entitled, self.borrowed)


class Tree:
    """The levels of one (flavor, resource). `capacity` is None where the resource has none (jobs)."""

    def __init__(self, quotas: Iterable[Quota], usages: Iterable[Usage], capacity: int | None) -> None:
        self.capacity = capacity
        self.levels: dict[str, Level] = {}
        self.roots: list[Level] = []
        self._asked: dict[tuple[str, int], Answer] = {}
        for quota in quotas:
            level = self.level(quota.tenant)
            level.min, level.max, level.lendable, level.known = quota.min, quota.max, quota.lendable, True
        for usage in usages:
            level = self.level(usage.tenant)
            level.use += usage.held + usage.observed
            level.observed += usage.observed
        self.settle()

    def uncount(self, path: str, amount: int) -> None:
        """Take off one level alone what is counted there twice; `settle` comes after."""
        self.level(path).use -= amount

    def settle(self) -> None:
        """Compute what every level's children hold back, deepest first: a level's reserve rests on its children's."""
        for level in sorted(self.levels.values(), key=lambda found: -found.path.count("/")):
            level.kept = sum(child.reserved - child.use for child in level.children)

    def level(self, path: str) -> Level:
        """The level of a tenant, made with its ancestors when it is new."""
        found = self.levels.get(path)
        if found is None:
            head, _, _ = path.rpartition("/")
            parent = self.level(head) if head else None
            found = self.levels[path] = Level(path, parent)
            (parent.children if parent else self.roots).append(found)
        return found

    def add(self, path: str, amount: int) -> None:
        """Count an amount (negative: give it back) at the tenant and in every ancestor."""
        self._asked.clear()
        level: Level | None = self.level(path)
        kept = 0
        while level is not None:
            before = level.reserved - level.use
            level.use += amount
            level.kept += kept
            kept = level.reserved - level.use - before
            level = level.parent

    def ask(self, path: str, amount: int) -> Answer:
        """What stands against `amount` more for the tenant; remembered until something is added."""
        found = self._asked.get((path, amount))
        if found is None:
            found = self._asked[path, amount] = self._ask(path, amount)
        return found

    def _ask(self, path: str, amount: int) -> Answer:
        level: Level | None = self.level(path)
        borrowed, entitled, kept, seen_known = 0, False, 0, False
        limit: Level | None = None
        while level is not None:
            use = level.use + amount
            if limit is None and level.max is not None and use > level.max:
                limit = level
            claim = use + level.kept + kept
            if level.known and not seen_known:
                seen_known = True
                borrowed = max(0, use - max(level.min, level.use))
            entitled = entitled or (level.min > 0 and claim <= level.min)
            reserved = max(claim, level.min - level.lendable)
            kept = (reserved - use) - (level.reserved - level.use)
            level = level.parent
        if not seen_known:
            borrowed = amount
        if limit is not None or entitled or self.capacity is None:
            return Answer(limit, 0, entitled, borrowed)
        return Answer(None, self._short(amount, kept), entitled, borrowed)

    def _short(self, amount: int, kept: int) -> int:
        use = sum(root.use for root in self.roots) + amount
        held_back = sum(root.reserved - root.use for root in self.roots) + kept
        # Where nobody's idle guarantee is in the way it is capacity that is short, not quota.
        return max(0, use + held_back - (self.capacity or 0)) if held_back > 0 else 0


class Quotas:
    """All trees of a snapshot, and what an admission does to them."""

    def __init__(self, snapshot: Snapshot) -> None:
        rows: dict[tuple[str, Resource], list[Quota]] = {}
        for quota in snapshot.quotas:
            rows.setdefault((quota.flavor, quota.resource), []).append(quota)
        usages = snapshot.usages or tuple(_usages(snapshot.live))
        used: dict[tuple[str, Resource], list[Usage]] = {}
        for usage in usages:
            used.setdefault((usage.flavor, usage.resource), []).append(usage)
        capacity = _capacity(snapshot.pools)
        self.trees: dict[tuple[str, Resource], Tree] = {}
        self.by_flavor: dict[str, list[tuple[Resource, Tree]]] = {}
        for key in sorted(rows):
            flavor, resource = key
            total = None if resource is Resource.JOBS else capacity.get(flavor, (0, 0, 0, 0))[_AT[resource]]
            tree = Tree(rows[key], used.get(key, ()), total)
            self.trees[key] = tree
        for path, (flavor, resource), amount in _held_twice(snapshot.live):
            if (flavor, resource) in self.trees:
                self.trees[flavor, resource].uncount(path, amount)
        for tree in self.trees.values():
            tree.settle()
        for flavor, resource in sorted(self.trees):
            tree = self.trees[flavor, resource]
            self.by_flavor.setdefault(flavor, []).append((resource, tree))

    def accelerators(self, flavor: str) -> Tree | None:
        """The tree of accelerators of a flavor, None where nobody has a quota of it."""
        return self.trees.get((flavor, Resource.ACCELERATORS))

    def ask(self, tenant: str, need: Mapping[str, Mapping[Resource, int]]) -> tuple[Answer, str, Resource]:
        """The worst answer over all flavors and resources of a need, with the flavor and resource it is about."""
        worst = Answer(entitled=True), "", Resource.ACCELERATORS
        for flavor, wanted in need.items():
            for resource, tree in self.by_flavor.get(flavor, ()):
                amount = wanted.get(resource, 0)
                if not amount:
                    continue
                answer = tree.ask(tenant, amount)
                if answer.badness > worst[0].badness:
                    worst = answer, flavor, resource
        return worst

    def within(
        self, tenant: str, need: Mapping[str, Mapping[Resource, int]], taken: Mapping[str, Mapping[Resource, int]]
    ) -> bool:
        """Whether no limit stands against a need, and no idle guarantee but for what a higher class has `taken`."""
        for flavor, wanted in need.items():
            for resource, tree in self.by_flavor.get(flavor, ()):
                if not (amount := wanted.get(resource, 0)):
                    continue
                answer = tree.ask(tenant, amount)
                if answer.limit is not None or answer.short > taken.get(flavor, {}).get(resource, 0):
                    return False
        return True

    def add(self, tenant: str, need: Mapping[str, Mapping[Resource, int]], sign: int = 1) -> None:
        """Count a need, or with sign −1 give it back."""
        for flavor, wanted in need.items():
            for resource, tree in self.by_flavor.get(flavor, ()):
                if amount := wanted.get(resource, 0):
                    tree.add(tenant, sign * amount)

    def withdraw(self, live: Iterable[LiveAttempt], waiter: LiveAttempt, sign: int = 1) -> None:
        """Take a waiter out, or with sign −1 put it back: what it and its victims both hold is the victims' alone."""
        waits_for = frozenset(waiter.contingent_on)
        # A move's next attempt counts on a victim too; what it may count on depends on who else does.
        others = [
            one
            for one in live
            if one.id in waits_for or (one is not waiter and not waits_for.isdisjoint(one.contingent_on))
        ]
        for some, by in (([*others, waiter], -sign), (others, sign)):
            for path, key, amount in _held_twice(some):
                if key in self.trees:
                    self.trees[key].uncount(path, by * amount)
        for tree in self.trees.values():
            tree.settle()
        self.add(waiter.tenant, need_of(waiter.placed), -sign)


def need_of(placed: Iterable[Placed]) -> dict[str, dict[Resource, int]]:
    """What a placement counts against, by flavor and resource; a job counts once per flavor."""
    need: dict[str, dict[Resource, int]] = {}
    for part in placed:
        wanted = need.setdefault(part.flavor, {Resource.JOBS: 1})
        total = amounts(part.total)
        for resource, at in _AT.items():
            wanted[resource] = wanted.get(resource, 0) + total[at]
    return need


def _held_twice(live: Iterable[LiveAttempt]) -> Iterable[tuple[str, tuple[str, Resource], int]]:
    """What a waiter and its victims both hold, at every level above both: it is used once (DESIGN §6)."""
    by_id = {attempt.id: attempt for attempt in live}
    claimed: set[tuple[str, str]] = set()  # at one level a victim's share is one waiter's; a move's comes last
    for waiter in sorted(by_id.values(), key=lambda attempt: bool(attempt.moved_from)):
        victims = [by_id[name] for name in waiter.contingent_on if name in by_id]
        if not victims:
            continue
        free = {
            path: [
                victim
                for victim in victims
                if f"{victim.tenant}/".startswith(f"{path}/") and (path, victim.id) not in claimed
            ]
            for path in _paths(waiter.tenant)
        }
        claimed.update((path, victim.id) for path in free for victim in victims)
        for flavor, wanted in need_of(waiter.placed).items():
            for path, below in free.items():
                going = [need_of(victim.leaves).get(flavor, {}) for victim in below]
                for resource, amount in wanted.items():
                    if twice := min(amount, sum(need.get(resource, 0) for need in going)):
                        yield path, (flavor, resource), twice


def _paths(tenant: str) -> Iterable[str]:
    parts = tenant.split("/")
    return ("/".join(parts[:depth]) for depth in range(1, len(parts) + 1))


def _usages(live: Iterable[LiveAttempt]) -> Iterable[Usage]:
    """Use counted from the leases themselves, for a snapshot that brings no balances."""
    for attempt in live:
        for flavor, wanted in need_of(attempt.placed).items():
            for resource, amount in wanted.items():
                for path in _paths(attempt.tenant):
                    yield Usage(path, flavor, resource, amount)


def _capacity(pools: Iterable[Pool]) -> dict[str, tuple[int, int, int, int]]:
    sums: dict[str, tuple[int, int, int, int]] = {}
    for pool in pools:
        for node in pool.nodes:
            if node.schedulable:
                have, more = sums.get(pool.flavor, (0, 0, 0, 0)), amounts(node.capacity.times(node.count))
                sums[pool.flavor] = (have[0] + more[0], have[1] + more[1], have[2] + more[2], have[3] + more[3])
    return sums
