"""Valid sizes of an elastic job, in one unit throughout (accelerators, or members of its elastic group).

A size is valid if it lies between min and max and is a multiple of `step`: of one whole model replica (TP × PP) and of
the job's own `multiple_of`. Decides nothing about room, quota or time.
"""

from dataclasses import dataclass
from math import gcd, lcm


@dataclass(frozen=True, slots=True)
class Sizes:
    """min <= target <= max. `step` divides every valid size; min, target and max need not be valid themselves."""

    min: int
    target: int
    max: int
    step: int = 1

    def valid(self, size: int) -> bool:
        """Whether the job may run at this size."""
        return self.min <= size <= self.max and size > 0 and size % self.step == 0

    def at_most(self, size: int) -> int | None:
        """The largest valid size up to `size`, None where there is none."""
        found = min(size, self.max) // self.step * self.step
        return found if self.valid(found) else None

    def at_least(self, size: int) -> int | None:
        """The smallest valid size from `size` on, None where there is none."""
        found = -(-max(size, self.min, 1) // self.step) * self.step
        return found if self.valid(found) else None

    def start(self, free: int) -> int | None:
        """The size to start with where `free` is there: the largest valid one up to the target that fits."""
        return self.at_most(min(self.target, free))

    def give_up(self, size: int, amount: int) -> int | None:
        """The size after giving up at least `amount` of `size`; None where that is below min."""
        return self.at_most(size - amount)

    def survive(self, size: int, lost: int) -> int | None:
        """The size at which what survives a loss goes on without a requeue; None where the survivors are too few."""
        return self.at_most(size - lost)


def step_of(model_replica: int, multiple_of: int) -> int:
    """The step in accelerators. model_replica: TP × PP, NOT the data-parallel degree."""
    return lcm(max(1, model_replica), max(1, multiple_of))


def members_step(model_replica: int, multiple_of: int, per_member: int) -> int:
    """The step in members: they are a multiple of `multiple_of`, and all their accelerators make whole model replicas.

    per_member: accelerators of one member; a member without any counts as one.
    """
    each = max(1, per_member)
    whole = max(1, model_replica)
    return lcm(whole // gcd(whole, each), max(1, multiple_of))
