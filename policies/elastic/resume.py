"""Who may resume from a checkpoint at another size. Knows layouts only, no room and no time."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Layout:
    """How a model is spread: ranks of one tensor-parallel group, pipeline stages, model replicas."""

    tp: int = 1
    pp: int = 1
    dp: int = 1


def may_resume(saved: Layout, wanted: Layout, *, reshardable: bool) -> bool:
    """tp and pp must be equal; dp too, unless the checkpoint says that it may be resharded."""
    same_model = (saved.tp, saved.pp) == (wanted.tp, wanted.pp)
    return same_model and (saved.dp == wanted.dp or reshardable)
