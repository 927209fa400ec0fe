"""What the jobs themselves wrote down: who worked when, and whether two ever worked at once. Reads only."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Line:
    """One line of one member. `place`: `<job id>.r<rank>` or `<job id>.i<index>`."""

    place: str
    event: str
    at: float
    pid: int
    attempt: int
    more: dict[str, Any]

    @property
    def job(self) -> str:
        """The job's id."""
        return self.place.rpartition(".")[0]


class Records:
    """A folder of records. Every member's file only grows."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o1777)

    def lines(self) -> Iterator[Line]:
        """Every line; one that a kill cut short ends its file."""
        for path in sorted(self.folder.glob("*.jsonl")):
            for text in path.read_text().splitlines():
                found = json.loads(text)
                known = {name: found.pop(name) for name in ("event", "at", "pid")}
                yield Line(path.stem, attempt=int(found.pop("attempt")), more=found, **known)

    def size(self) -> int:
        """Bytes in all records: it grows whenever a member begins or ends."""
        return sum(path.stat().st_size for path in self.folder.glob("*.jsonl"))

    def started(self, job: str) -> bool:
        """Whether any member of the job has begun."""
        return any(path.stat().st_size for path in self.folder.glob(f"{job}.*.jsonl"))

    def overlaps(self) -> list[Line]:
        """Members that began while another one worked in the same place."""
        return [line for line in self.lines() if line.event == "overlap"]

    def working(self) -> list[int]:
        """Living processes that work for this folder, by their environment."""
        mark = f"RECORDS={self.folder}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    if mark in (entry / "environ").read_bytes().split(b"\0"):
                        found.append(int(entry.name))
                except OSError:
                    continue  # it ended while we looked, or is a stranger's
        return found
