"""Which step a name means. Numeric, never by text order or file time (CASES CK-02)."""

from __future__ import annotations

import re
from typing import Iterable, Optional

_WORDED = re.compile(r"(?:step|iter|iteration|checkpoint|ckpt)[-_=.]?(\d+)", re.IGNORECASE)
_NUMBER = re.compile(r"\d+")
_ATTEMPT = re.compile(r"attempt-(\d+)")
_FOLDER = re.compile(r"step[-_](\d+)")
_UNFINISHED = (".tmp", ".part", ".partial", ".incomplete")


def step_of(name: str) -> Optional[int]:
    """The step in a checkpoint's name: the number behind a word for steps, else the last number; None without one.

    Names that end like temporary ones have no step: they are not finished.
    """
    if name.lower().endswith(_UNFINISHED):
        return None
    worded = _WORDED.findall(name)
    found = worded or _NUMBER.findall(name)
    return int(found[-1]) if found else None


def newest_step(names: Iterable[str]) -> Optional[str]:
    """The name with the highest step, for folders that other tools have written; None if no name has a step."""
    steps = [(step, name) for name in names for step in (step_of(name),) if step is not None]
    return max(steps)[1] if steps else None


def folder_step(name: str) -> Optional[int]:
    """The step of a folder that holds a manifest (`step-100`, `step_100`); None for any other name."""
    match = _FOLDER.fullmatch(name)
    return int(match.group(1)) if match else None


def attempt_of(name: str) -> Optional[int]:
    """N of `attempt-N`, else None."""
    match = _ATTEMPT.fullmatch(name)
    return int(match.group(1)) if match else None
