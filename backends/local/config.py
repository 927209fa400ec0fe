"""Settings of the local backend: its pools of node slots, where its state lies, and how tenants are kept apart."""

import re
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator

from policies.snapshot import Resources
from policies.vocabulary import CapacityType

GPU: Final = 1000  # milli-GPU
CPU: Final = 1000  # milli-CPU
MOST_BYTES: Final = 2**50  # the sum over all nodes of a pool is still an integer of the ledger
_QUANTITY: Final = re.compile(r"([0-9]+)([KMGT]i?|)")
_UNITS: Final[Mapping[str, int]] = MappingProxyType(
    {"": 1}
    | {f"{letter}i": 1024**power for power, letter in enumerate("KMGT", start=1)}
    | {letter: 1000**power for power, letter in enumerate("KMGT", start=1)}
)


def _bytes(value: Any) -> Any:
    """`16Gi` → 17179869184; anything else is left for the validator to judge."""
    match = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
    return int(match[1]) * _UNITS[match[2]] if match else value


Bytes = Annotated[int, BeforeValidator(_bytes), Field(ge=0)]


class Isolation(StrEnum):
    """AUTO: UID where we are root, else NONE; nothing else about this machine makes it NONE.

    UID: one user id per tenant. NONE: everything runs as us, and a second tenant is not served.
    """

    AUTO = "auto"
    UID = "uid"
    NONE = "none"


class LocalPool(BaseModel):
    """Equal slots `<name>-0` … `<name>-<nodes-1>`; an instance is made on a slot when something is to run there."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    name: str = Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=40)
    flavor: str = ""
    nodes: int = Field(default=1, ge=1, le=1000)
    accelerators: int = Field(default=0, ge=0, le=64, description="Virtual GPUs per node.")
    cpus: int = Field(default=4, ge=1, le=100_000, description="Per node; counted, not enforced.")
    memory: Bytes = Field(default=8 * 1024**3, le=MOST_BYTES, description="Per node; counted, not enforced.")
    disk: Bytes = Field(default=100 * 1024**3, le=MOST_BYTES, description="Per node; counted, not enforced.")
    capacity_type: CapacityType = CapacityType.ON_DEMAND
    price: int = Field(default=0, ge=0, le=10**12, description="Per GPU-hour; the flavor's price is what counts.")
    spot_notice_s: float = Field(
        default=120, ge=0, le=86_400, description="An instance is told so long before its end."
    )
    labels: Mapping[str, str] = Field(default_factory=dict)

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the nodes."""
        return tuple(f"{self.name}-{index}" for index in range(self.nodes))

    @property
    def per_node(self) -> Resources:
        """What one node has."""
        return Resources(self.accelerators * GPU, self.cpus * CPU, self.memory, self.disk)


class LocalConfig(BaseModel):
    """All settings of one local backend."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    state_dir: Path = Field(description="Where instances and launches are kept; one folder per backend.")
    pools: tuple[LocalPool, ...] = Field(min_length=1)
    isolation: Isolation = Isolation.AUTO
    trust_below: str = Field(
        default="", description="A tenant path: it and all below it count as one tenant, because they trust each other."
    )
    uid_base: int = Field(default=60_000, ge=1000, le=64_000, description="The first user id given to a tenant.")
    idle_timeout_s: float = Field(default=300, gt=0, description="An instance with nothing to do is ended after this.")
    timeout_s: float = Field(default=20, gt=0, description="No call of the port takes longer.")
    poll_s: float = Field(default=0.1, gt=0, le=5, description="How often watch and follow look at the files.")
    keep_ended_s: float = Field(default=86_400, ge=0, description="How long an ended launch and its logs are kept.")
    heartbeat_s: float = Field(default=2, gt=0, description="Interval of the gang's heartbeats.")
    heartbeat_timeout_s: float = Field(default=20, gt=0, le=30, description="A member unheard of for this is lost.")

    @field_validator("pools")
    @classmethod
    def _names_differ(cls, pools: tuple[LocalPool, ...]) -> tuple[LocalPool, ...]:
        slots = [slot for pool in pools for slot in pool.slots]
        if len(set(slots)) != len(slots):
            raise ValueError("two pools name the same node; give them names that differ by more than a number")
        return pools

    def declared_capacity(self) -> Mapping[str, Resources]:
        """See `backends.port.DeclaresCapacity`."""
        return {pool.name: pool.per_node.times(pool.nodes) for pool in self.pools}

    def pool(self, name: str) -> LocalPool | None:
        """The pool of this name."""
        return next((pool for pool in self.pools if pool.name == name), None)
