"""What a job may use to live well under Tidegate. Standard library only, Python 3.9 or newer; no job has to use it.

from tidegate import job

checkpoints = job.checkpoints()
found = checkpoints.resume()
for step in range(found.step + 1 if found else 0, steps):
    ...
    job.report(step, samples)
    stop = job.should_stop(step)
    if stop or job.should_save(step) or step % 500 == 0:
        checkpoints.save(step, {"model.npz": write_model})
    if stop:
        job.exit_saved()
job.finish()
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidegate.job.environ import Context, context
    from tidegate.job.fence import Fenced
    from tidegate.job.manifest import InvalidCheckpoint, Manifest, Shard
    from tidegate.job.names import newest_step, step_of
    from tidegate.job.notices import Notice
    from tidegate.job.saving import SaveTimeout
    from tidegate.job.session import (
        EXIT_SAVED,
        Session,
        checkpoints,
        exit_saved,
        finish,
        notice,
        report,
        session,
        should_save,
        should_stop,
    )
    from tidegate.job.staging import Stager, Upload
    from tidegate.job.store import Checkpoint, Checkpoints, Rejected
    from tidegate.job.urls import ContextError

# Loaded at first use: the agent's keepers share some of these modules and must start fast.
_HOMES = {
    "environ": ("Context", "context"),
    "fence": ("Fenced",),
    "manifest": ("InvalidCheckpoint", "Manifest", "Shard"),
    "names": ("newest_step", "step_of"),
    "notices": ("Notice",),
    "saving": ("SaveTimeout",),
    "session": (
        "EXIT_SAVED",
        "Session",
        "checkpoints",
        "exit_saved",
        "finish",
        "notice",
        "report",
        "session",
        "should_save",
        "should_stop",
    ),
    "staging": ("Stager", "Upload"),
    "store": ("Checkpoint", "Checkpoints", "Rejected"),
    "urls": ("ContextError",),
}

__all__ = [
    "EXIT_SAVED",
    "Checkpoint",
    "Checkpoints",
    "Context",
    "ContextError",
    "Fenced",
    "InvalidCheckpoint",
    "Manifest",
    "Notice",
    "Rejected",
    "SaveTimeout",
    "Session",
    "Shard",
    "Stager",
    "Upload",
    "checkpoints",
    "context",
    "exit_saved",
    "finish",
    "newest_step",
    "notice",
    "report",
    "session",
    "should_save",
    "should_stop",
    "step_of",
]


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
