"""Which live attempts may give way to a waiter in one pool, and for which cause; the bounds of POLICIES §7.

Equal priority never preempts equal priority; the one exception is an owner that takes its borrowed guarantee back.
A P0 finds no time of anybody else's preemption in its way: it takes what is being stopped already, with no grace, and
displaces a lower class's waiter that counts on it. That waiter goes with its victims as ONE candidate, so that what a
victim frees is promised to one waiter only.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from policies.quota.tree import Level, Tree
from policies.settings import PolicySettings
from policies.snapshot import LiveAttempt, Override
from policies.vocabulary import ARBITERS_STOPS, AttemptState, PriorityClass, StopCause

_STOPPABLE = frozenset({AttemptState.PENDING, AttemptState.RUNNING, AttemptState.CHECKPOINTING})
OURS: Final = ARBITERS_STOPS


@dataclass(frozen=True, slots=True)
class Waiter:
    """Who asks: its class in force, and whether it may take its guarantee back in the pool's flavor."""

    tenant: str
    klass: PriorityClass
    reclaims: bool


@dataclass(frozen=True, slots=True)
class Victim:
    """An attempt that may give way, with the cause that would be written.

    leaving: it is being stopped already. brings: for a waiter that is displaced, those whose end it waits for.
    """

    attempt: LiveAttempt
    cause: StopCause
    forced: bool = False
    leaving: bool = False
    brings: "tuple[Victim, ...]" = ()

    @property
    def displaced(self) -> bool:
        """Whether it is a waiter, which holds a promise and has never run."""
        return bool(self.attempt.contingent_on)

    @property
    def all(self) -> "tuple[Victim, ...]":
        """It and those that it brings."""
        return (self, *self.brings)


@dataclass(frozen=True, slots=True)
class Bounds:
    """What limits every preemption of a cycle: operators' words, the time, the settings."""

    words: Mapping[str, Override]
    now_ms: int
    settings: PolicySettings


def overrides_at(overrides: tuple[Override, ...], now_ms: int) -> Mapping[str, Override]:
    """The operators' words in force, by attempt; a word to forbid outweighs one to force."""
    found: dict[str, Override] = {}
    for override in sorted(overrides, key=lambda word: (word.attempt, word.force, word.until_ms)):
        if override.until_ms > now_ms:
            found.setdefault(override.attempt, override)
    return found


def victim_of(attempt: LiveAttempt, waiter: Waiter, tree: Tree | None, bounds: Bounds) -> Victim | None:
    """Whether one attempt may give way to the waiter, None if not."""
    if attempt.contingent_on:
        return None
    if attempt.stopping is not None:
        return _leaving(attempt, bounds) if waiter.klass is PriorityClass.P0 and attempt.stopping in OURS else None
    if attempt.state not in _STOPPABLE:
        return None
    word = bounds.words.get(attempt.id)
    if word is not None and not word.force:
        return None
    cause = _cause(attempt, waiter, tree)
    if cause is None:
        return None
    forced = word is not None
    if not forced and _spared(attempt, waiter, bounds.now_ms, bounds.settings):
        return None
    return Victim(attempt, cause, forced)


def displaced(attempt: LiveAttempt, waits_for: Sequence[LiveAttempt], waiter: Waiter, bounds: Bounds) -> Victim | None:
    """A lower class's waiter with those whose end it waits for, if a P0 asks. It never ran, so nothing spares it."""
    if waiter.klass is not PriorityClass.P0 or attempt.klass is PriorityClass.P0 or attempt.stopping is not None:
        return None
    if _forbidden(attempt, bounds) or not attempt.contingent_on:
        return None
    brings = [_leaving(one, bounds) for one in waits_for]
    # One that is not to be hurried, or not stopped by us, is left to end in its time; the waiter then stays too.
    found = tuple(victim for victim in brings if victim is not None)
    return Victim(attempt, StopCause.PREEMPT, brings=found) if len(found) == len(brings) else None


def _leaving(attempt: LiveAttempt, bounds: Bounds) -> Victim | None:
    if attempt.stopping not in OURS or attempt.klass is PriorityClass.P0 or _forbidden(attempt, bounds):
        return None
    return Victim(attempt, attempt.stopping, leaving=True)


def _forbidden(attempt: LiveAttempt, bounds: Bounds) -> bool:
    word = bounds.words.get(attempt.id)
    return word is not None and not word.force


def _cause(attempt: LiveAttempt, waiter: Waiter, tree: Tree | None) -> StopCause | None:
    if attempt.klass is PriorityClass.P0:
        return None
    if waiter.reclaims and tree is not None and borrows_from_outside(tree, attempt.tenant, waiter.tenant):
        return StopCause.RECLAIM
    if waiter.klass is PriorityClass.P0:
        return StopCause.PREEMPT
    if waiter.klass is PriorityClass.P1 and attempt.klass is PriorityClass.P2:
        return StopCause.PREEMPT
    return None


def _spared(attempt: LiveAttempt, waiter: Waiter, now_ms: int, settings: PolicySettings) -> bool:
    since = attempt.started_ms if attempt.started_ms is not None else attempt.leased_ms
    promised = min(attempt.min_runtime_ms, settings.min_runtime_cap_ms[attempt.klass])
    if waiter.klass is not PriorityClass.P0 and now_ms - since < promised:
        return True
    if attempt.preemptions_today >= settings.max_preemptions_per_job_day:
        return True
    if attempt.last_preempted_ms is not None and now_ms - attempt.last_preempted_ms < settings.cool_down_ms:
        return True
    # Once only, so that an estimate that keeps moving does not make a job untouchable.
    soon = attempt.ends_by_ms is not None and 0 <= attempt.ends_by_ms - now_ms <= settings.finish_soon_ms
    return soon and not attempt.finish_spared


def borrows_from_outside(tree: Tree, borrower: str, owner: str) -> bool:
    """Whether every level of the borrower below their common ancestor is above its guarantee.

    A department within its guarantee owes nothing to other departments, whatever its teams lend each other.
    """
    if borrower == owner:
        return False
    owners = {level.path for level in _up(tree.level(owner))}
    below = [level for level in _up(tree.level(borrower)) if level.path not in owners]
    return bool(below) and all(level.excess > 0 for level in below)


def excess_of(tree: Tree, borrower: str, owner: str) -> int:
    """How far the borrower's branch is above its guarantee, at the level just below the common ancestor."""
    owners = {level.path for level in _up(tree.level(owner))}
    below = [level for level in _up(tree.level(borrower)) if level.path not in owners]
    return below[-1].excess if below else 0


def _up(level: Level | None) -> list[Level]:
    found = []
    while level is not None:
        found.append(level)
        level = level.parent
    return found
