"""The spec of a member, checked field by field. No text of it reaches a shell line; launch and rank alone name paths.

No dataclass here: keepers import this and must start fast.
"""

from __future__ import annotations

import hashlib
import json
import re
import signal
from typing import Any, Dict, List, NamedTuple, Optional

_LAUNCH = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_NOTICE_SIGNALS = frozenset({"USR1", "USR2", "TERM", "INT", "HUP", "CONT", "URG", "WINCH"})
KINDS = frozenset({"checkpoint", "preempt", "revoke", "rebalance", "resize", "stop"})


class SpecError(ValueError):
    """A request that cannot be understood; `field` names where."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


class Gang(NamedTuple):
    """Where the agents of one launch hear of each other."""

    size: int
    host: str
    port: int
    interval_s: float
    timeout_s: float
    secret: str


class Spec(NamedTuple):
    """One member as asked for. `document` is what was asked, without the token; its digest tells two specs apart."""

    launch: str
    rank: int
    group: str
    argv: Optional[List[str]]
    script: Optional[str]
    setup: str
    env: Dict[str, str]
    cwd: Optional[str]
    uid: Optional[int]
    gid: Optional[int]
    log: Optional[str]
    archive: Optional[str]
    archive_sha256: str
    notice_signal: str
    gpus: Optional[List[int]]
    grace_s: float
    term_s: float
    max_duration_s: Optional[float]
    gang: Optional[Gang]
    document: Dict[str, Any]

    @property
    def digest(self) -> str:
        """Equal for equal requests."""
        return hashlib.sha256(json.dumps(self.document, sort_keys=True).encode()).hexdigest()

    @property
    def signal_number(self) -> int:
        """Of the notice."""
        return int(getattr(signal, f"SIG{self.notice_signal}"))


def parse(document: Any) -> Spec:
    """Check a request (without its token). SpecError names the first field that is wrong."""
    if not isinstance(document, dict):
        raise SpecError("body", "must be an object")
    argv = document.get("argv")
    script = _text(document, "script", None)
    if (argv is None) == (script is None):
        raise SpecError("argv", "give exactly one of argv and script")
    if argv is not None:
        argv = _argv(argv)
    workdir = document.get("workdir") or {}
    if not isinstance(workdir, dict):
        raise SpecError("workdir", "must be an object with archive and sha256")
    notice_signal = str(document.get("notice_signal") or "USR1").upper().replace("SIG", "", 1)
    if notice_signal not in _NOTICE_SIGNALS:
        raise SpecError("notice_signal", f"must be one of {', '.join(sorted(_NOTICE_SIGNALS))}")
    return Spec(
        launch=launch_name(document.get("launch")),
        rank=_whole(document, "rank", None) or 0,
        group=_text(document, "group", "") or "",
        argv=argv,
        script=script,
        setup=_text(document, "setup", "") or "",
        env=_env(document.get("env") or {}),
        cwd=_absolute("cwd", document.get("cwd")),
        uid=_optional_whole(document, "uid"),
        gid=_optional_whole(document, "gid"),
        log=_absolute("log", document.get("log")),
        archive=_absolute("workdir.archive", workdir.get("archive")),
        archive_sha256=str(workdir.get("sha256") or "").lower(),
        notice_signal=notice_signal,
        gpus=_gpus(document.get("gpus")),
        grace_s=seconds(document, "grace_s", 300.0),
        term_s=seconds(document, "term_s", 10.0),
        max_duration_s=None if document.get("max_duration_s") is None else seconds(document, "max_duration_s", 0.0),
        gang=_gang(document.get("gang")),
        document=document,
    )


def launch_name(value: Any) -> str:
    """A launch's name, which names a folder."""
    if not isinstance(value, str) or not _LAUNCH.fullmatch(value):
        raise SpecError("launch", "must match [A-Za-z0-9][A-Za-z0-9._-]{0,127}")
    return value


def kind_name(value: Any) -> str:
    """The kind of a notice or stop."""
    if value not in KINDS:
        raise SpecError("kind", f"must be one of {', '.join(sorted(KINDS))}")
    return str(value)


def seconds(document: Dict[str, Any], field: str, default: float) -> float:
    """A number of seconds, 0 or more."""
    value = document.get(field)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < float("inf"):
        raise SpecError(field, "must be a number of seconds, 0 or more")
    return float(value)


def _whole(document: Dict[str, Any], field: str, default: Optional[int]) -> Optional[int]:
    value = document.get(field, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise SpecError(field, "must be a whole number, 0 or more")
    return value


def _optional_whole(document: Dict[str, Any], field: str) -> Optional[int]:
    return None if document.get(field) is None else _whole(document, field, None)


def _text(document: Dict[str, Any], field: str, default: Optional[str]) -> Optional[str]:
    value = document.get(field)
    if value is None:
        return default
    if not isinstance(value, str) or "\0" in value:
        raise SpecError(field, "must be a text without NUL")
    return value


def _argv(value: Any) -> List[str]:
    if not isinstance(value, list) or not value or not value[0]:
        raise SpecError("argv", "must be a list that begins with a program")
    if any(not isinstance(word, str) or "\0" in word for word in value):
        raise SpecError("argv", "must hold texts without NUL")
    return list(value)


def _env(value: Any) -> Dict[str, str]:
    if not isinstance(value, dict):
        raise SpecError("env", "must be an object of texts")
    for name, text in value.items():
        if not name or "=" in name or "\0" in name:
            raise SpecError("env", f"{name[:40]!r} is no name for a variable")
        if not isinstance(text, str) or "\0" in text:
            raise SpecError(f"env.{name}", "must be a text without NUL")
    return dict(value)


def _absolute(field: str, value: Any) -> Optional[str]:
    if value is None:
        return None
    if not isinstance(value, str) or not value.startswith("/") or "\0" in value:
        raise SpecError(field, "must be an absolute path")
    return value


def _gpus(value: Any) -> Optional[List[int]]:
    if value is None:
        return None
    if not isinstance(value, list) or any(
        isinstance(one, bool) or not isinstance(one, int) or one < 0 for one in value
    ):
        raise SpecError("gpus", "must be a list of indices")
    return list(value)


def _gang(value: Any) -> Optional[Gang]:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise SpecError("gang", "must be an object")
    host, _, port = str(value.get("coordinator", "")).rpartition(":")
    if not host or not port.isdigit():
        raise SpecError("gang.coordinator", "must be host:port")
    size = _whole(value, "size", None) or 0
    interval_s, timeout_s = seconds(value, "interval_s", 2.0), seconds(value, "timeout_s", 20.0)
    if size < 1 or interval_s <= 0 or timeout_s <= interval_s:
        raise SpecError("gang", "size must be 1 or more, and timeout_s longer than interval_s")
    return Gang(size, host.strip("[]"), int(port), interval_s, timeout_s, str(value.get("secret") or ""))
