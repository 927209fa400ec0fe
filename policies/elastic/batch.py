"""What a job at another size does to its batch: accumulation first, the learning rate only for what is left over.

The global batch is DP × accumulation × micro-batch. Always computed from the size that the job was written for, never
from the size before, so that no rounding adds up over many resizes. Fractions, no floats.
"""

from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True, slots=True)
class Batch:
    """What the job is told: micro-batches per step on each rank, and the factor of its learning rate."""

    accumulation: int
    lr_scale: Fraction

    @property
    def scale_text(self) -> str:
        """`1`, or `3/4`: exact, as TIDEGATE_LR_SCALE carries it."""
        return str(self.lr_scale)


def batch(dp: int, now: int, accumulation: int = 1) -> Batch:
    """The batch at data-parallel degree `now` of a job written for `dp` with this accumulation.

    The accumulation that comes nearest to the same global batch, at least 1; the rate is scaled by what the batch
    then is of the one it was written for (linear scaling, Goyal et al. 2017, arXiv:1706.02677).
    """
    if min(dp, now, accumulation) < 1:
        raise ValueError("dp, now and accumulation are at least 1")
    whole = dp * accumulation
    # To the nearest, ties to the smaller: a batch that is a little smaller needs a rate that is a little smaller.
    nearest = max(1, -((now - 2 * whole) // (2 * now)))
    return Batch(nearest, Fraction(now * nearest, whole))
