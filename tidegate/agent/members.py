"""All members of this instance: starts keepers, hands them orders, reads their status. The truth lies on disk.

Never waits for a member while holding its lock, except in `remove`. One (launch, rank) is one member for ever.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from tidegate.agent import child, folder, spec
from tidegate.agent.folder import Folder
from tidegate.job import durable

log = logging.getLogger("tidegate.agent")

LOCK_WAIT_S = 15.0
REMOVE_WAIT_S = 10.0
POLL_S = 0.02
_ENTRY = "import sys; sys.path.insert(0, {root!r}); from tidegate.agent.keeper import main; sys.exit(main())"
#: The zipapp, or the folder that holds the `tidegate` package.
HELPER = str(Path(__file__).absolute().parents[2])


class Conflict(Exception):  # noqa: N818 - an answer, not a defect
    """The same launch and rank with another spec."""


class Revoked(Exception):  # noqa: N818 - an answer, not a defect
    """The instance is being taken away and starts nothing new."""


class Revocation(NamedTuple):
    """What the provider said about this instance; `deadline` in epoch seconds."""

    kind: str
    deadline: Optional[float]
    at: float
    detail: str


class _Member:
    """In memory: the keeper's process and what orders need. Everything else is read from its folder."""

    def __init__(self, place: Folder, digest: str) -> None:
        self.place = place
        self.name = {"launch": place.path.parent.name, "rank": int(place.path.name)}
        self.digest = digest
        self.keeper: Optional["subprocess.Popen[bytes]"] = None
        self.lock = threading.Lock()
        self.seen: Tuple[Any, Dict[str, Any]] = (None, {})


class Members:
    """Safe to call from several threads."""

    def __init__(self, root: Path, instance: str, *, on_started: Optional[Callable[[spec.Spec], None]] = None) -> None:
        self.root = root
        self.instance = instance
        self.revocation: Optional[Revocation] = None
        self._on_started = on_started
        self._lock = threading.Lock()
        self._members: Dict[Tuple[str, int], _Member] = {}

    def recover(self) -> None:
        """Take over what an earlier agent of this folder left: members that had not ended have died with it."""
        for place in folder.member_folders(self.root):
            try:
                document = durable.read_json(place.spec)
                status = self._settled(place)
                member = _Member(place, document["digest"])
                self._members[status["launch"], status["rank"]] = member
            except (OSError, ValueError, KeyError, TypeError) as error:
                log.warning("member in %s cannot be read: %s", place.path, error)

    def start(self, document: Any) -> Tuple[Dict[str, Any], bool]:
        """Start a member; (its status, whether it is new). SpecError, Conflict, Revoked."""
        if not isinstance(document, dict):
            raise spec.SpecError("body", "must be an object")
        document = dict(document)
        token = document.pop("token", None)
        if token is not None and not isinstance(token, str):
            raise spec.SpecError("token", "must be a text")
        asked = spec.parse(document)
        if asked.uid is not None and asked.uid != os.geteuid() and os.geteuid() != 0:
            raise spec.SpecError("uid", "this agent is not root and cannot run members as others; leave it out")
        key = (asked.launch, asked.rank)
        with self._lock:
            member = self._members.get(key)
            if member is None:
                if self.revocation is not None and self.revocation.kind == "revoke":
                    raise Revoked(f"instance {self.instance} is being taken away")
                member = self._members[key] = self._launch(asked, token)
                created = True
            elif member.digest != asked.digest:
                raise Conflict(f"{asked.launch} rank {asked.rank} was started with another spec")
            else:
                created = False
        if created and self._on_started is not None:
            self._on_started(asked)
        return self._status(member), created

    def list(self, launch: Optional[str] = None) -> List[Dict[str, Any]]:
        """Status of each member, sorted by launch and rank."""
        with self._lock:
            chosen = [member for key, member in sorted(self._members.items()) if launch in (None, key[0])]
        return [self._status(member) for member in chosen]

    def states(self, launch: str) -> Dict[int, str]:
        """State by rank of one launch here."""
        return {status["rank"]: status["state"] for status in self.list(launch)}

    def notice(self, launch: str, kind: str, grace_s: Optional[float], ranks: Optional[List[int]] = None) -> List[int]:
        """Tell members; the ranks that were alive to hear it."""
        order = {"do": "notice", "kind": kind, "grace_s": grace_s}
        return [rank for rank, member in self._of(launch, ranks) if self._order(member, order)]

    def stop(
        self, launch: str, kind: str, grace_s: float, term_s: Optional[float], ranks: Optional[List[int]] = None
    ) -> Tuple[List[int], List[int]]:
        """Ask members to end; (ranks that will, ranks that had ended)."""
        order = {"do": "stop", "kind": kind, "grace_s": grace_s, "term_s": term_s}
        stopping: List[int] = []
        ended: List[int] = []
        for rank, member in self._of(launch, ranks):
            (stopping if self._order(member, order) else ended).append(rank)
        return stopping, ended

    def fail(self, launch: str, cause: str, detail: str) -> None:
        """Kill the members of a launch that are still here, with a cause that is not theirs."""
        for _, member in self._of(launch, None):
            self._order(member, {"do": "fail", "cause": cause, "detail": detail})

    def revoke(self, revocation: Revocation) -> None:
        """Act on the provider's notice at once: a revocation stops every member by its deadline, advice only tells."""
        with self._lock:
            self.revocation = revocation
            launches = sorted({launch for launch, _ in self._members})
        grace_s = None if revocation.deadline is None else max(0.0, revocation.deadline - time.time())
        for launch in launches:
            if revocation.kind == "revoke":
                self.stop(launch, "revoke", grace_s or 0.0, None)
            else:
                self.notice(launch, revocation.kind, grace_s)

    def remove(self, launch: str, ranks: Optional[List[int]] = None) -> List[int]:
        """Kill what lives (of these ranks, or all) and remove every trace; the ranks that are gone. Idempotent."""
        chosen = self._of(launch, ranks)
        self.stop(launch, "stop", 0.0, 0.0, ranks)
        deadline = time.monotonic() + REMOVE_WAIT_S
        removed = []
        for rank, member in chosen:
            while self._status(member)["state"] != "ended" and time.monotonic() < deadline:
                time.sleep(POLL_S)
            if self._status(member)["state"] == "ended":
                self._let_go(member)
                with self._lock:
                    self._members.pop((launch, rank), None)
                # The job may have left folders that even its owner cannot enter; ours to take away.
                shutil.rmtree(member.place.path, ignore_errors=True)
                removed.append(rank)
        parent = self.root / "members" / launch
        if removed and not any(parent.iterdir()):
            parent.rmdir()
        return removed

    def close(self) -> None:
        """The agent ends: its members end with it."""
        with self._lock:
            members = list(self._members.values())
        for member in members:
            with member.lock:
                if member.keeper is not None and member.keeper.stdin is not None:
                    member.keeper.stdin.close()
        for member in members:
            self._let_go(member)

    def _launch(self, asked: spec.Spec, token: Optional[str]) -> _Member:
        place = folder.member_folder(self.root, asked.launch, asked.rank)
        owner = child.owner_of(asked)
        folder.make(self.root / "members", 0o711)
        folder.make(place.path.parent, 0o711)
        folder.make(place.path, 0o711)
        folder.make(place.job, 0o700, owner)
        folder.make(place.work, 0o700, owner)
        durable.write_json(place.spec, {**asked.document, "digest": asked.digest}, mode=0o600)
        place.write_status(_first_status(asked, place))
        member = _Member(place, asked.digest)
        environment = {name: os.environ[name] for name in child.BASE_VARIABLES if name in os.environ}
        member.keeper = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _ENTRY.format(root=HELPER), str(place.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            bufsize=0,  # nothing may wait in a buffer when the keeper is gone
            env=environment,
            cwd="/",
            start_new_session=True,
        )
        self._order(member, {"token": token, "helper": HELPER})
        return member

    def _of(self, launch: str, ranks: Optional[List[int]]) -> List[Tuple[int, _Member]]:
        with self._lock:
            return [
                (rank, member)
                for (name, rank), member in sorted(self._members.items())
                if name == launch and (ranks is None or rank in ranks)
            ]

    def _order(self, member: _Member, order: Dict[str, Any]) -> bool:
        """False when the member has ended."""
        with member.lock:
            if member.keeper is None or member.keeper.stdin is None or member.keeper.stdin.closed:
                return False
            try:
                member.keeper.stdin.write(json.dumps(order).encode() + b"\n")
                member.keeper.stdin.flush()
            except BrokenPipeError:
                return False
        return bool(self._status(member)["state"] != "ended")

    def _status(self, member: _Member) -> Dict[str, Any]:
        """The last status that could be read: one member's broken file hides no other member."""
        ended = member.keeper is None or member.keeper.poll() is not None
        with member.lock:
            try:
                stat = member.place.status.stat()
                version = (stat.st_ino, stat.st_mtime_ns)
                if member.seen[0] != version:
                    member.seen = (version, member.place.read_status() or {})
                if ended and member.seen[1].get("state") != "ended":
                    member.seen = (None, self._settled(member.place))
            except (OSError, ValueError) as error:
                if not isinstance(error, FileNotFoundError):  # that is a member which is being removed
                    log.warning("the status of %s cannot be read: %s", member.place.path, error)
                state = "ended" if ended else member.seen[1].get("state", "starting")
                return {**member.name, **member.seen[1], "state": state}
            return member.seen[1]

    def _settled(self, place: Folder) -> Dict[str, Any]:
        """The last status of a member whose keeper is gone or going; written as NodeLost if the keeper could not."""
        deadline = time.monotonic() + LOCK_WAIT_S
        lock = folder.try_lock(place.lock)
        while lock is None and time.monotonic() < deadline:
            time.sleep(POLL_S)
            lock = folder.try_lock(place.lock)
        if lock is not None:
            os.close(lock)
        status = place.read_status() or {}
        if status.get("state") != "ended":
            status.update(
                state="ended", ended_at=time.time(), cause="NodeLost", detail="its keeper died with the agent"
            )
            status["sequence"] = status.get("sequence", 0) + 1
            try:
                place.write_status(status)
            except OSError as error:
                log.warning("the end of %s could not be written: %s", place.path, error)
        return status

    def _let_go(self, member: _Member) -> None:
        if member.keeper is not None:
            try:
                member.keeper.wait(LOCK_WAIT_S)
            except subprocess.TimeoutExpired:
                log.warning("the keeper of %s does not end", member.place.path)
            if member.keeper.stdin is not None:
                member.keeper.stdin.close()


def _first_status(asked: spec.Spec, place: Folder) -> Dict[str, Any]:
    return {
        "launch": asked.launch,
        "rank": asked.rank,
        "group": asked.group,
        "state": "starting",
        "pid": None,
        "started_at": None,
        "ended_at": None,
        "exit_code": None,
        "signal": None,
        "cause": None,
        "detail": "",
        "notice": None,
        "stop": None,
        "final": False,
        "sequence": 1,
        "gpus": asked.gpus,
        "folder": str(place.path),
        "log": asked.log or str(place.log),
    }
