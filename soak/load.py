"""The jobs of a soak, by a seed: of every kind that the gate has a path for, each with the end it must come to."""

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidegate.wire.spec import JobSpec

RESEARCH = "acme/research"
PRODUCT = "acme/product"
CARD = {"accelerators": "V100:1", "cpus": 1, "memory": "256Mi"}
PAIR = {"accelerators": "V100:2", "cpus": 1, "memory": "256Mi"}
PLAIN = {"cpus": 1, "memory": "128Mi"}
TURN = (
    "short",
    "train",
    "short",
    "gang",
    "array",
    "train",
    "flaky",
    "urgent",
    "short",
    "failing",
    "train",
    "cancelled",
)

CANCELLED = "cancelled"  # the users cancel these once they run
ENDS: dict[str, tuple[str, int | None]] = {
    "array": ("SUCCEEDED", None),
    "failing": ("FAILED", 7),
    CANCELLED: ("CANCELLED", None),
}


@dataclass(frozen=True, slots=True)
class Wanted:
    """A job and how it must end; exit_code None: whichever."""

    key: str
    shape: str
    spec: JobSpec
    state: str
    exit_code: int | None


@dataclass(frozen=True, slots=True)
class Load:
    """Makes the n-th job of a run. `workdir`: digest of the uploaded `soak/job`; `folder`: for records, checkpoints."""

    seed: int
    workdir: str
    python: str
    folder: Path

    def job(self, number: int) -> Wanted:
        """The same for the same seed and number."""
        draw = random.Random(f"{self.seed}/{number}")
        shape = TURN[number % len(TURN)]
        name = f"{shape}-{number:04d}"
        spec: dict[str, Any] = {
            "name": name,
            "tenant": RESEARCH,
            "workdir": self.workdir,
            "run": f'exec "{self.python}" member.py',
            "resources": PLAIN,
            "capacity": {"type": "on_demand"},
            "max_duration": "10m",
            "grace": "20s",
            "env": self._env("short", draw.randint(4, 24)),
        }
        if shape in {"train", "gang", "urgent"}:
            spec |= {"resources": CARD, "kind": "training"}
            spec["env"] = self._env("train", draw.randint(100, 200))
            spec["checkpoint"] = {"url": f"{(self.folder / 'checkpoints').as_uri()}/{name}"}
        if shape == "gang":
            spec |= {"num_nodes": 2, "gang_timeout": "2m"}
        elif shape == "urgent":
            # Every card there is: whatever runs on one gives way.
            spec |= {"tenant": PRODUCT, "priority": "P1", "num_nodes": 3, "gang_timeout": "2m", "resources": PAIR}
            spec["env"] = self._env("train", draw.randint(12, 24))
        elif shape == "array":
            spec["array"] = {"indexes": 4, "parallelism": 3}
        elif shape == "flaky":
            spec |= {"env": self._env("flaky", 5), "retry": {"max": 2}}
        elif shape == "failing":
            spec["env"] = self._env("short", 5) | {"CODE": "7"}
        elif shape == CANCELLED:
            spec["env"] = self._env("short", 6000)
        state, exit_code = ENDS.get(shape, ("SUCCEEDED", 0))
        return Wanted(f"soak-{self.seed}-{number}", shape, JobSpec.model_validate(spec), state, exit_code)

    def _env(self, mode: str, steps: int) -> dict[str, str]:
        return {"RECORDS": str(self.folder / "records"), "MODE": mode, "STEPS": str(steps), "STEP_MS": "50"}
