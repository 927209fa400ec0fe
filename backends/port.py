"""The port: what every backend does, and the contract it keeps. `tests/contract` proves each sentence.

All calls block and are made from activity threads. Each returns or raises one of `backends.errors` before
`timeout_s` of the backend's settings has passed. No answer is never "no job": a backend that cannot ask raises.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol, runtime_checkable

from backends.types import (
    Capabilities,
    Handle,
    LaunchRequest,
    LogChunk,
    NoticeKind,
    Observation,
    Owned,
    PoolCapacity,
    Recalled,
    StopMode,
)
from policies.snapshot import Resources


class Backend(Protocol):
    """One instance of a kind, with a name. Safe to call from several threads and several processes at once."""

    @property
    def name(self) -> str:
        """The instance's name, as in the operators' files."""
        ...

    @property
    def capabilities(self) -> Capabilities:
        """What this instance may promise; constant while it lives."""
        ...

    def capacity(self) -> Sequence[PoolCapacity]:
        """Capacity of every pool. Objects under our own tag are never counted as foreign. Never negative.

        Raises Unreachable when it cannot look: dark is stale, not empty.
        """
        ...

    def prepare(self, request: LaunchRequest) -> Handle:
        """Make every object of the launch, checked by the backend but not started and holding no capacity.

        Idempotent by key: a second call returns the same handle and makes nothing. Refused leaves nothing behind.
        OutcomeUnknown: call again with the same key, or find it.
        """
        ...

    def start(self, handle: Handle) -> None:
        """Release a prepared launch, whole. Idempotent; a no-op once it runs or has ended.

        NoCapacity: nothing of it runs, it is still prepared.
        """
        ...

    def abort(self, handle: Handle) -> None:
        """Take a launch away whatever its step, leaving nothing. Idempotent; unknown handles are a no-op."""
        ...

    def find(self, key: str) -> Handle | None:
        """The launch with this key, whoever made it and whatever its phase; None only if a query that is known to see
        everything saw none and the settle time since any launch of it by this process has passed.
        """
        ...

    def observe(self, handles: Sequence[Handle]) -> Sequence[Observation]:
        """One observation per handle, in order, in as few queries as the backend allows. Unknown is ABSENT.

        One bad row makes that handle stale (it is left out), not the others.
        """
        ...

    def watch(self, since: str) -> Iterator[tuple[str, Observation | None]]:
        """Changes after the cursor `since` ("" from now on), with the cursor to go on from.

        Yields (cursor, None) at least once a second, so that the caller can leave. A backend without a native watch
        polls inside. Ends or raises when its stream does; the caller relists by observe() and watches again.
        """
        ...

    def stop(self, handle: Handle, mode: StopMode, grace_s: int, kind: NoticeKind = NoticeKind.STOP) -> None:
        """Ask the launch to end; returns once the backend has the wish, not when it is carried out.

        Idempotent in every state, also right after a prepare whose answer was lost. A second call may only shorten.
        """
        ...

    def list_owned(self) -> Sequence[Owned]:
        """Every live or recently ended object with this gateway's tag, from any process of ours, and no other's."""
        ...

    def logs(self, handle: Handle, rank: int, offset: int = 0, *, follow: bool = False) -> Iterator[LogChunk]:
        """Output of one member from a byte offset. Without `follow` ends at the end of what there is; with it, when
        the member has ended. Yields empty chunks while quiet, so that the caller can leave.
        """
        ...

    def close(self) -> None:
        """Let go of connections and threads. Launches live on."""
        ...


@runtime_checkable
class Checkpoints(Protocol):
    """Backends with `capabilities.checkpoint_signal`."""

    def notify(self, handle: Handle, kind: NoticeKind, deadline_s: int | None) -> None:
        """Tell every member (notice file and the job's signal) without stopping it."""
        ...


@runtime_checkable
class Recalls(Protocol):
    """Backends whose objects carry enough to be adopted by a gateway whose database was restored from a backup."""

    def recall(self, handle: Handle) -> Recalled | None:
        """What the object tells of its launch, in any phase; None when it is not there or does not say."""
        ...


@runtime_checkable
class Resizes(Protocol):
    """Backends with `capabilities.resize`: inside a living allocation."""

    def resize(self, handle: Handle, group: str, replicas: int, nodes: Sequence[str] = ()) -> None:
        """Ask for another size; the observation's `ready` says when it is there. Ends at the asked size or the old.

        The members with the highest ranks go, told as by a stop with kind RESIZE, and new ones come behind those that
        are there: a rank that stays is never restarted. nodes[i] is the node of member i where the arbiter chose them.
        Idempotent; the last call counts. Refused, or NoCapacity: nothing was changed.
        """
        ...


@runtime_checkable
class DeclaresCapacity(Protocol):
    """Settings of kinds whose pools hold what the operators say, and not what a cluster answers later."""

    def declared_capacity(self) -> Mapping[str, Resources]:
        """Everything a pool holds, by the pool's name: what `capacity()` will report, without a call."""
        ...
