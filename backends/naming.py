"""Names that are safe everywhere: as a Slurm job name, a DNS label, a Kubernetes label value, a file name, a tag.

An attempt's id is the tag by which a native object is found again after a crash, so it is made from the job's id and
a number and from nothing random (CASES SL-08, TP-01).
"""

import hashlib
import re
from typing import Final
from uuid import UUID

MAX_LABEL: Final = 63
_SAFE: Final = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?")
_KEY: Final = re.compile(r"tg-(?P<job>[0-9a-f]{32})(?:-c(?P<chunk>[0-9]{1,7}))?-(?P<number>[0-9]{1,6})")


def attempt_id(job: UUID, number: int, chunk: int | None = None) -> str:
    """`tg-<32 hex>[-c<chunk>]-<number>`: at most 50 characters, so that a backend may add `-<group or rank>`."""
    part = "" if chunk is None else f"-c{chunk}"
    return f"tg-{job.hex}{part}-{number}"


def parse_attempt_id(key: str) -> tuple[UUID, int | None, int]:
    """(job, chunk, number) of an attempt id; ValueError for any other text."""
    match = _KEY.fullmatch(key)
    if match is None:
        raise ValueError(f"not an attempt id: {key[:80]!r}")
    chunk = match["chunk"]
    return UUID(hex=match["job"]), None if chunk is None else int(chunk), int(match["number"])


def label(text: str, *, max_length: int = MAX_LABEL) -> str:
    """A DNS label for any text: itself if it is one, else a slug and eight digits of its hash.

    Different texts give different labels; the same text always gives the same (CASES K8-03).
    """
    if len(text) <= max_length and _SAFE.fullmatch(text):
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    slug = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[: max_length - 9].rstrip("-")
    return f"{slug}-{digest}" if slug else f"x-{digest}"
