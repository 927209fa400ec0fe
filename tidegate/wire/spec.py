"""The job spec: what a user writes. Every field has one meaning; what is not here is refused with its name.

Fields whose machinery comes with a later backend or policy are added with it, so that nothing is accepted and then
ignored.
"""

import re
from math import gcd, lcm
from typing import Annotated, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, StringConstraints, field_validator, model_validator

from tidegate.wire.base import Wire
from tidegate.wire.enums import CapacityWish, JobKind, JobState, Launcher, PriorityClass, SignalName
from tidegate.wire.units import Bytes, Milli, Seconds

MAX_NAME: Final = 200
MAX_TEXT: Final = 256 * 1024
MAX_MEMBERS: Final = 100_000
MAX_INDEXES: Final = 1_000_000
RESERVED_ENV: Final = ("SLURM_", "SBATCH_", "SRUN_", "TIDEGATE_", "LD_")
_ENV_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,254}")
# NUL and lone surrogates: no text column holds them, no process receives them, no UTF-8 carries the latter.
NOT_TEXT: Final = re.compile("[\x00\ud800-\udfff]")
_URL_TEXT: Final = re.compile(r"[!-~]{1,2048}")
_LABEL: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_./@+]{0,61}[A-Za-z0-9])?")


def is_text(value: str) -> str:
    """The value. ValueError where no text column could hold it."""
    if NOT_TEXT.search(value):
        raise ValueError("it contains NUL or half of a surrogate pair; take that character away")
    return value


Name = Annotated[str, StringConstraints(min_length=1, max_length=MAX_NAME), AfterValidator(is_text)]
Slug = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]
TenantPath = Annotated[
    str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?(/[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?){0,7}$")
]
Text = Annotated[str, StringConstraints(max_length=MAX_TEXT), AfterValidator(is_text)]
Word = Annotated[str, StringConstraints(max_length=MAX_NAME), AfterValidator(is_text)]


def _labels_are_short(value: dict[str, str]) -> dict[str, str]:
    for key, text in value.items():
        if not _LABEL.fullmatch(key) or len(text) > MAX_NAME or NOT_TEXT.search(text):
            raise ValueError(f"label {key[:64]!r}: a key has 1 to 63 of A-Z a-z 0-9 - _ . / @ +, a value at most 200")
    return value


Labels = Annotated[dict[str, str], Field(max_length=64), AfterValidator(_labels_are_short)]
Count = Annotated[int, Field(ge=1, le=MAX_MEMBERS, strict=True)]


class Accelerators(Wire):
    """Cards per member: a model (`H100`) or any, and how many. Written `H100:8`, `8` or as an object."""

    model: Annotated[str, StringConstraints(max_length=63), AfterValidator(is_text)] = ""
    count: Milli = 0


def _accelerators(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("write a count (8), a model and count (H100:8), or {model, count}")  # noqa: TRY004
    if isinstance(value, int | float):
        return {"count": value}
    if isinstance(value, str):
        model, colon, count = value.rpartition(":")
        return {"model": model, "count": count} if colon else {"count": value}
    return value


class Resources(Wire):
    """What each member needs."""

    accelerators: Accelerators = Accelerators()
    cpus: Milli = 1000
    memory: Bytes = 1 << 30
    disk: Bytes = 0

    _read = field_validator("accelerators", mode="before")(staticmethod(_accelerators))


class Group(Wire):
    """A part of a job with equal members. `min_replicas` below `replicas` needs `elastic`."""

    name: Slug = "main"
    replicas: Count = 1
    min_replicas: Count | None = None
    resources: Resources | None = None
    command: tuple[Text, ...] | None = None


class Placement(Wire):
    """Where a job may go. Empty lists allow everything; with `ordered`, the first alternative that fits is taken."""

    flavors: tuple[Slug, ...] = ()
    pools: tuple[Slug, ...] = ()
    backends: tuple[Slug, ...] = ()
    zones: tuple[Word, ...] = ()
    ordered: bool = False
    require: dict[Word, Word] = Field(default_factory=dict, max_length=32)
    prefer: dict[Word, Word] = Field(default_factory=dict, max_length=32)


class Capacity(Wire):
    """The kind of capacity; `max_price` in micro-dollars per GPU-hour."""

    type: CapacityWish = CapacityWish.MIXED
    max_price: Annotated[int, Field(ge=0, le=10**12, strict=True)] | None = None
    accept_loss: bool = False


class Array(Wire):
    """One job, many indexes 0 … indexes-1, each with TIDEGATE_ARRAY_INDEX. `parallelism` bounds those live at once."""

    indexes: Annotated[int, Field(ge=1, le=MAX_INDEXES, strict=True)]
    parallelism: Annotated[int, Field(ge=1, le=MAX_INDEXES, strict=True)] | None = None
    max_failed: Annotated[int, Field(ge=0, le=MAX_INDEXES, strict=True)] = 0


class After(Wire):
    """Jobs that must have ended: well, in any way, or badly."""

    ok: tuple[str, ...] = ()
    any: tuple[str, ...] = ()
    not_ok: tuple[str, ...] = ()


class Retry(Wire):
    """How often the job's own failures are tried again. Revocations and preemptions never count."""

    max: Annotated[int, Field(ge=0, le=1000, strict=True)] = 0
    on_events: tuple[Literal["NonZeroExit", "OutOfMemory", "LaunchFailed", "Lost"], ...] = (
        "NonZeroExit",
        "OutOfMemory",
        "LaunchFailed",
        "Lost",
    )
    max_duration: Seconds | None = None


class Checkpoint(Wire):
    """Where the job saves, how often it says it does, and how it is told to."""

    url: Annotated[str, StringConstraints(min_length=1, max_length=2048)]
    interval: Seconds | None = None
    save_timeout: Seconds = 120
    signal: SignalName = SignalName.USR1


class Elastic(Wire):
    """Sizes the job can run at, in replicas of its one elastic group: with several groups, the one whose `min_replicas`
    is below its `replicas`. `reshard`: its checkpoints may be resumed at another size where they say so themselves.
    `accumulation`: micro-batches per step at `target`, from which TIDEGATE_GRAD_ACCUM follows at another size.
    """

    min: Count
    target: Count
    max: Count
    multiple_of: Count = 1
    reshard: bool = False
    accumulation: Annotated[int, Field(ge=1, le=10_000, strict=True)] = 1


class Parallelism(Wire):
    """How the model is spread. tp·pp·dp = accelerators of the (target) size, a member without any counting as one; `dp`
    may be left out and follows a resize. `ep` divides tp·dp. A tensor-parallel group never leaves a member.
    """

    tp: Count = 1
    pp: Count = 1
    dp: Count | None = None
    ep: Count = 1


class Stall(Wire):
    """After its first report, a job that reports no step for so long has stalled."""

    timeout: Seconds = 600
    factor: Annotated[int, Field(ge=1, le=1000, strict=True)] = 10


class Sla(Wire):
    """How long the job may wait in the queue before it is rejected."""

    max_queue: Seconds | None = None


def _hook_url(value: str) -> str:
    if not _URL_TEXT.fullmatch(value):
        raise ValueError("write an https URL in printable ASCII without spaces, up to 2048 letters")
    try:
        parts = urlsplit(value)
        port = parts.port
    except ValueError:
        raise ValueError("no URL that can be read; write https://host/path") from None
    if parts.scheme != "https" or not parts.hostname or port == 0:
        raise ValueError("webhooks go to https:// URLs alone, with a host")
    if parts.username is not None or parts.password is not None or parts.fragment:
        raise ValueError("no user, password or fragment in a webhook's URL; every delivery is signed instead")
    return value


class Notify(Wire):
    """Where word of the job goes, and at which of its states. See docs/WEBHOOKS.md."""

    url: Annotated[str, AfterValidator(_hook_url)]
    on: Annotated[tuple[JobState, ...], Field(min_length=1, max_length=16)] = (
        JobState.SUCCEEDED,
        JobState.FAILED,
        JobState.CANCELLED,
        JobState.REJECTED,
    )


class JobSpec(Wire):
    """The wish. Either `groups`, or `num_nodes` equal members of `resources` running `run`."""

    name: Name
    tenant: TenantPath | None = None
    kind: JobKind = JobKind.BATCH
    priority: PriorityClass = PriorityClass.P2
    workdir: Annotated[str, StringConstraints(max_length=512)] | None = None
    setup: Text = ""
    run: Text | None = None
    env: dict[str, Text] = Field(default_factory=dict, max_length=1000)
    groups: tuple[Group, ...] | None = Field(default=None, min_length=1, max_length=64)
    num_nodes: Count = 1
    resources: Resources = Resources()
    launcher: Launcher = Launcher.PLAIN
    placement: Placement = Placement()
    capacity: Capacity = Capacity()
    array: Array | None = None
    after: After = After()
    retry: Retry = Retry()
    max_duration: Seconds | None = None
    deadline: Annotated[str, StringConstraints(max_length=40)] | None = None
    elastic: Elastic | None = None
    parallelism: Parallelism | None = None
    checkpoint: Checkpoint | None = None
    stall: Stall | None = None
    grace: Seconds | None = None
    min_runtime: Seconds = 0
    sla: Sla = Sla()
    gang_timeout: Seconds | None = Field(default=600)
    notify: tuple[Notify, ...] = Field(default=(), max_length=4)
    labels: Labels = Field(default_factory=dict)

    @field_validator("name")
    @classmethod
    def _has_letters(cls, value: str) -> str:
        if not value.strip():
            raise ValueError("a name has at least one visible character")
        return value

    @field_validator("env")
    @classmethod
    def _env_is_the_users(cls, value: dict[str, str]) -> dict[str, str]:
        for name in value:
            if not _ENV_NAME.fullmatch(name):
                raise ValueError(f"{name[:64]!r} is no environment name; use letters, digits and _")
            if name.startswith(RESERVED_ENV):
                raise ValueError(f"{name} is reserved ({' '.join(p + '*' for p in RESERVED_ENV)}); choose another name")
        return value

    @model_validator(mode="after")
    def _holds_together(self) -> Self:
        names = [group.name for group in self.flat_groups()]
        if len(set(names)) != len(names):
            raise ValueError("groups: each group needs a name of its own")
        for group in self.flat_groups():
            if not group.command and self.run is None:
                raise ValueError(f"groups.{group.name}.command: say what to run here, or `run` for the whole job")
            if group.min_replicas is not None and group.min_replicas != group.replicas and self.elastic is None:
                raise ValueError("groups.min_replicas: below replicas only with `elastic`; a gang starts whole")
        if self.gang_size > 1 and self.gang_timeout in (None, 0):
            raise ValueError("gang_timeout: a gang may not wait without bound; give a duration, for example 10m")
        if self.array and self.elastic:
            raise ValueError("array: an array's tasks have one size; take `elastic` away")
        if self.elastic and not self.elastic.min <= self.elastic.target <= self.elastic.max:
            raise ValueError("elastic: min <= target <= max")
        if self.elastic and len(self.flat_groups()) > 1 and len(self._shrinkable()) != 1:
            raise ValueError("elastic: of several groups exactly one is elastic; give that one a smaller min_replicas")
        if self.parallelism:
            self._check_parallelism(self.parallelism)
        if self.elastic and self._smallest() > self.elastic.target:
            raise ValueError(
                f"elastic.multiple_of: no size from min {self.elastic.min} to target {self.elastic.target} is a"
                f" multiple of {self.size_step} (multiple_of and whole model replicas tp·pp); widen min and target"
            )
        return self

    def _check_parallelism(self, parallel: Parallelism) -> None:
        each = [max(1, -(-g.resources.accelerators.count // 1000)) for g in self.flat_groups() if g.resources]
        if any(one % parallel.tp for one in each):
            raise ValueError(
                f"parallelism.tp: a tensor-parallel group never leaves a member; give each a multiple of {parallel.tp}"
                " accelerators"
            )
        cards = self._cards()
        if cards % (parallel.tp * parallel.pp):
            raise ValueError(f"parallelism: tp·pp = {parallel.tp * parallel.pp} does not divide {cards} accelerators")
        dp = cards // (parallel.tp * parallel.pp)
        if parallel.dp not in {None, dp}:
            raise ValueError(f"parallelism.dp: tp·pp·dp is the {cards} accelerators of the target size, so dp is {dp}")
        if parallel.tp * dp % parallel.ep:
            raise ValueError(f"parallelism.ep: divides tp·dp = {parallel.tp * dp}")

    def _cards(self) -> int:
        """Accelerators at the target size, a member without any counting as one."""
        total = 0
        for group in self.flat_groups():
            assert group.resources is not None
            each = max(1, -(-group.resources.accelerators.count // 1000))
            size = self.elastic.target if self.elastic and group.name == self.elastic_group else group.replicas
            total += each * size
        return total

    def _shrinkable(self) -> list[str]:
        return [g.name for g in self.flat_groups() if g.min_replicas is not None and g.min_replicas < g.replicas]

    def _smallest(self) -> int:
        assert self.elastic is not None
        return -(-self.elastic.min // self.size_step) * self.size_step

    @property
    def elastic_group(self) -> str | None:
        """The name of the group that has several sizes, None for a job of one size."""
        if self.elastic is None:
            return None
        groups = self.flat_groups()
        return groups[0].name if len(groups) == 1 else next(iter(self._shrinkable()), None)

    @property
    def size_step(self) -> int:
        """Every valid size of the elastic group is a multiple of so many members."""
        group = next((group for group in self.flat_groups() if group.name == self.elastic_group), None)
        if self.elastic is None or group is None or group.resources is None:
            return 1
        each = max(1, -(-group.resources.accelerators.count // 1000))
        whole = self.parallelism.tp * self.parallelism.pp if self.parallelism else 1
        return lcm(whole // gcd(whole, each), self.elastic.multiple_of)

    def flat_groups(self) -> tuple[Group, ...]:
        """The groups with their resources filled in; one called `main` when the job has none of its own."""
        groups = self.groups or (Group(name="main", replicas=self.num_nodes),)
        return tuple(
            group.model_copy(
                update={
                    "resources": group.resources or self.resources,
                    "min_replicas": group.min_replicas or group.replicas,
                }
            )
            for group in groups
        )

    @property
    def gang_size(self) -> int:
        """Members of all groups together."""
        return sum(group.replicas for group in self.flat_groups())
