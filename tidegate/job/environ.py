"""What the environment of a member says. Read once, validated, never changed here.

Under torchrun and other launchers with several processes per node, RANK and WORLD_SIZE count processes; without
them a member is one process and the node's rank is the rank.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Mapping, Optional

from tidegate.job.urls import ContextError

SIGNAL_DEFAULT = "USR1"


@dataclass(frozen=True)
class Context:
    """One member's place in its attempt. Outside Tidegate everything has the value of a lone process."""

    job_id: str
    attempt: int
    rank: int
    world_size: int
    node_rank: int
    num_nodes: int
    master_addr: str
    master_port: int
    coord_port: int
    checkpoint_url: str
    resume_from: str
    url: str
    token_file: Optional[Path]
    notice_file: Optional[Path]
    checkpoint_signal: str
    target_replicas: Optional[int]
    grad_accum: int
    lr_scale: float
    incarnation: str  # differs between in-place restarts inside one attempt

    def token(self) -> str:
        """The attempt's token, read from its file each time; empty when there is none."""
        try:
            return self.token_file.read_text().strip() if self.token_file else ""
        except OSError:
            return ""


def context(env: Optional[Mapping[str, str]] = None) -> Context:
    """Read the environment (`os.environ` by default). ContextError names the variable that is wrong."""
    env = os.environ if env is None else env
    node_rank = _number(env, "TIDEGATE_NODE_RANK", 0)
    num_nodes = _number(env, "TIDEGATE_NUM_NODES", 1)
    rank = _number(env, "RANK", node_rank)
    world_size = _number(env, "WORLD_SIZE", num_nodes)
    if not 0 <= rank < world_size:
        raise ContextError(f"rank {rank} is not below the world size {world_size}: check RANK and WORLD_SIZE")
    master_port = _number(env, "MASTER_PORT", 0)
    return Context(
        job_id=env.get("TIDEGATE_JOB_ID", ""),
        attempt=_number(env, "TIDEGATE_ATTEMPT", 1),
        rank=rank,
        world_size=world_size,
        node_rank=node_rank,
        num_nodes=num_nodes,
        master_addr=env.get("MASTER_ADDR", "127.0.0.1"),
        master_port=master_port,
        coord_port=_number(env, "TIDEGATE_COORD_PORT", master_port + 1 if master_port else 0),
        checkpoint_url=env.get("TIDEGATE_CHECKPOINT_URL", ""),
        resume_from=env.get("TIDEGATE_RESUME_FROM", ""),
        url=env.get("TIDEGATE_URL", "").rstrip("/"),
        token_file=_path(env, "TIDEGATE_TOKEN_FILE"),
        notice_file=_path(env, "TIDEGATE_NOTICE_FILE"),
        checkpoint_signal=env.get("TIDEGATE_CHECKPOINT_SIGNAL", "") or SIGNAL_DEFAULT,
        target_replicas=_number(env, "TIDEGATE_TARGET_REPLICAS", 0) or None,
        grad_accum=_number(env, "TIDEGATE_GRAD_ACCUM", 1),
        lr_scale=_fraction(env, "TIDEGATE_LR_SCALE"),
        incarnation="-".join(env.get(name, "0") for name in ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")),
    )


def _number(env: Mapping[str, str], name: str, default: int) -> int:
    text = env.get(name, "")
    if not text:
        return default
    try:
        value = int(text)
    except ValueError:
        raise ContextError(f"{name} must be a whole number, not {text[:40]!r}") from None
    if value < 0:
        raise ContextError(f"{name} must not be negative, and is {value}")
    return value


def _fraction(env: Mapping[str, str], name: str) -> float:
    text = env.get(name, "") or "1"
    try:
        over, _, under = text.partition("/")
        return float(over) / float(under or "1")
    except (ValueError, ZeroDivisionError):
        raise ContextError(f"{name} must be a number or a fraction a/b, not {text[:40]!r}") from None


def _path(env: Mapping[str, str], name: str) -> Optional[Path]:
    return Path(env[name]) if env.get(name) else None
