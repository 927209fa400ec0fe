"""The closed set of things an AttemptWorkflow can do next. Each is its activity's whole input: small, JSON-able.

`workflows.decide` chooses one; what a step does outside is the business of `workflows.activities.attempt`.
"""

from dataclasses import dataclass, field

from workflows.messages import EndRequest


@dataclass(frozen=True)
class Launch:
    """The only backend of the attempt: prepare and start in one go."""

    attempt_id: str
    backend: str


@dataclass(frozen=True)
class Prepare:
    """Prepare at these backends, all of them or none."""

    attempt_id: str
    backends: list[str]


@dataclass(frozen=True)
class Start:
    """Release what is prepared at one backend of several."""

    attempt_id: str
    backend: str


@dataclass(frozen=True)
class SendStop:
    """Tell every started part to go, and take away what has not been started.

    cause: write this StopCause first, if the row has none yet; "" keeps the row's (or none: a member failed).
    mode, kind: backends.types.StopMode and NoticeKind.
    """

    attempt_id: str
    mode: str
    grace_s: int
    kind: str
    cause: str = ""


@dataclass(frozen=True)
class SendCheckpoint:
    """Tell every member to save and go on: the job's wish number `number`."""

    attempt_id: str
    number: int


@dataclass(frozen=True)
class SendResize:
    """Ask the backend for another number of members inside the launch."""

    attempt_id: str
    backend: str
    group: str
    replicas: int
    nodes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class FinishResize:
    """It is there; or its time is over (`reached` False): the backend is asked back to the old size, `before`."""

    attempt_id: str
    backend: str
    group: str
    before: int
    reached: bool


@dataclass(frozen=True)
class Mark:
    """Step along the attempt table, guarded."""

    attempt_id: str
    to: str
    at_ms: int | None = None


@dataclass(frozen=True)
class Confirm:
    """A started part is reported absent: ask by key before believing it."""

    attempt_id: str
    backend: str


@dataclass(frozen=True)
class AbortAll:
    """Take every part away and then settle: nothing of the attempt is left when its lease is given back.

    rest: pools that get nothing for `rest_s` seconds, because of `rest_reason`.
    """

    end: EndRequest
    rest: list[str] = field(default_factory=list)
    rest_s: int = 0
    rest_reason: str = ""


@dataclass(frozen=True)
class Settle:
    """Every part has ended by itself: settle."""

    end: EndRequest


@dataclass(frozen=True)
class Wait:
    """Nothing to do until a nudge, or so many seconds from now."""

    wake_after_s: float


@dataclass(frozen=True)
class Leave:
    """The attempt has ended and is settled."""


Step = (
    Launch
    | Prepare
    | Start
    | SendStop
    | SendCheckpoint
    | SendResize
    | FinishResize
    | Mark
    | Confirm
    | AbortAll
    | Settle
    | Wait
    | Leave
)
