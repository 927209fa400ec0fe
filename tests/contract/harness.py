"""What a backend's harness gives to the contract suite. A new backend writes one of these, and no test.

A harness names things by what they do to the contract ("lose the answer"), and does them where its vendor's calls are
made. What it cannot do at all it leaves out of `offers`, and the clause is skipped with that as its printed reason.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from enum import StrEnum
from typing import Protocol

from backends.port import Backend
from backends.types import Handle
from policies.snapshot import Resources


class Program(StrEnum):
    """What members of a launch do. Every one first prints the line `started`."""

    STAY = "stay"  # until it is ended
    EXIT = "exit"  # with the code of the first argument
    FAIL_RANK = "fail_rank"  # rank <first argument> exits with code <second>; the others stay
    HEAR = "hear"  # prints `told` at a notice and stays
    SAVE = "save"  # exits 75 at a notice
    SAY = "say"  # prints its arguments, one per line, and exits 0
    ENV = "env"  # prints each variable named by its arguments as JSON text, one per line, and exits 0


class Offer(StrEnum):
    """What a harness is able to bring about."""

    LOSE_ANSWER = "lose_answer"
    DARK = "dark"
    HANG = "hang"
    FOREIGN = "foreign"
    OWNERS = "owners"  # foreign use is told by owner
    EVICT = "evict"
    REFUSE = "refuse"
    INTRUDE = "intrude"


class Harness(Protocol):
    """One world with one backend in it."""

    name: str
    pool: str  # has at least two nodes with two GPUs each
    nodes: int
    deadline_s: float  # within which every call of the port answers
    offers: frozenset[Offer]

    def backend(self, gateway: str = "gw") -> Backend:
        """A new adapter on the same world, as a restarted process would make it."""
        ...

    def command(self, program: Program, *arguments: str) -> tuple[str, ...]:
        """The command by which members do that."""
        ...

    def lose_answer(self, backend: Backend, operation: str) -> None:
        """The next call of `operation` takes effect, and its answer gets lost on the way."""
        ...

    def dark(self, backend: Backend) -> AbstractContextManager[None]:
        """Nothing of the backend can be reached by this adapter meanwhile."""
        ...

    def hang(self, backend: Backend, handle: Handle) -> AbstractContextManager[None]:
        """What serves this launch accepts calls and never answers, meanwhile."""
        ...

    def refused(self) -> Resources:
        """An amount per member that the backend refuses at prepare."""
        ...

    def evict(self, backend: Backend, handle: Handle) -> None:
        """The cluster takes the capacity of a running launch away, unasked."""
        ...

    def use_foreign(self, amount: Resources, owner: str = "") -> None:
        """Somebody else (who the backend calls `owner`) takes this much of the pool's first node, without our tag."""
        ...

    def foreign_lives(self) -> bool:
        """Whether what `use_foreign` began still goes on as it was."""
        ...

    def traces(self, key: str) -> Sequence[str]:
        """Every native object of a launch, whatever its state: empty when nothing of it is left."""
        ...

    def begun(self, backend: Backend, handle: Handle, rank: int) -> int:
        """How often the member was really started."""
        ...

    def told(self, backend: Backend, handle: Handle) -> Sequence[int]:
        """The ranks that heard a notice (program HEAR)."""
        ...

    def intrude(self, backend: Backend, victim: Handle) -> Sequence[str]:
        """From a job of another tenant, try to read, signal and see a running launch: what succeeded, in words."""
        ...

    def close(self) -> None:
        """End and remove everything that was begun."""
        ...


def output(backend: Backend, handle: Handle, rank: int) -> bytes:
    """All that a member has printed so far."""
    return b"".join(chunk.data for chunk in backend.logs(handle, rank))
