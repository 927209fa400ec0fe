"""How a gang agrees on one step to stop or to save at, while every rank hears of a notice at another moment.

Rank 0 coordinates over TCP (MASTER_ADDR, TIDEGATE_COORD_PORT). A flag of any rank starts a round: freeze all, take the
highest step that any rank has passed, plus one, tell all (see `gate`). Never blocks training while there is no flag.
A rank that does not answer within `patience_s` is left out of the maximum: its node is most likely gone.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import socket
import threading
import time
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Set, Tuple

from tidegate.job import lines
from tidegate.job.gate import SAVE, STOP, Gate

log = logging.getLogger("tidegate.job")

RETRY_S = 0.2
#: Flags of other ranks that come this long after a save was decided mean the same notice.
SAME_NOTICE_S = 30.0


@dataclass(frozen=True)
class Flag:
    """A rank's wish. The same (rank, key) is the same wish, however often it is sent."""

    kind: str
    rank: int
    key: str


@dataclass
class _Round:
    number: int
    kind: str
    contributors: Set[int]
    answers: Dict[int, int] = field(default_factory=dict)
    step: Optional[int] = None
    decided_at: float = 0.0


class Coordinator:
    """Rank 0's part: decides rounds one after another. With a world of one it opens no port."""

    def __init__(self, gate: Gate, world_size: int, address: Tuple[str, int], key: bytes, patience_s: float) -> None:
        self._gate = gate
        self._world_size = world_size
        self._address = address
        self._key = key
        self._patience_s = patience_s
        self._flags: "queue.Queue[Optional[Flag]]" = queue.Queue()
        self._seen: Set[Tuple[int, str]] = set()
        self._changed = threading.Condition()
        self._members: Dict[int, lines.Lines] = {}
        self._rounds: Dict[str, _Round] = {}
        self._current: Optional[_Round] = None
        self._number = 0
        self._closed = threading.Event()
        self._server: Optional[socket.socket] = None

    def start(self) -> None:
        """Begin to listen and to decide, in threads that end with the process."""
        threading.Thread(target=self._decide_all, name="tidegate-agree", daemon=True).start()
        if self._world_size > 1:
            threading.Thread(target=self._listen, name="tidegate-listen", daemon=True).start()

    def flag(self, kind: str, key: str) -> None:
        """Rank 0's own wish."""
        self._flags.put(Flag(kind, 0, key))

    def close(self) -> None:
        """End the threads and connections."""
        self._closed.set()
        self._flags.put(None)
        if self._server is not None:
            self._server.close()
        with self._changed:
            members = list(self._members.values())
            self._changed.notify_all()
        for member in members:
            member.close()

    def _decide_all(self) -> None:
        while True:
            flag = self._flags.get()
            if flag is None or self._closed.is_set():
                return
            if self._is_news(flag):
                self._decide(flag)

    def _is_news(self, flag: Flag) -> bool:
        if (flag.rank, flag.key) in self._seen:
            return False
        self._seen.add((flag.rank, flag.key))
        before = self._rounds.get(flag.kind)
        if before is None:
            return True
        if flag.kind == STOP:
            return False
        joins = flag.rank not in before.contributors and time.monotonic() - before.decided_at < SAME_NOTICE_S
        before.contributors.add(flag.rank)
        return not joins

    def _decide(self, flag: Flag) -> None:
        self._number += 1
        this = _Round(self._number, flag.kind, {flag.rank})
        with self._changed:
            self._current = this
            members = dict(self._members)
        this.answers[0] = self._gate.freeze(this.number)
        for rank, member in members.items():
            self._tell(rank, member, {"freeze": this.number})
        with self._changed:
            deadline = time.monotonic() + self._patience_s
            while len(this.answers) < self._world_size and not self._closed.is_set():
                left = deadline - time.monotonic()
                if left <= 0:
                    missing = sorted(set(range(self._world_size)) - set(this.answers))
                    log.warning("ranks %s did not answer; the gang agrees without them", missing)
                    break
                self._changed.wait(left)
            this.step = max(this.answers.values()) + 1
            this.decided_at = time.monotonic()
            self._rounds[flag.kind] = this
            self._current = None
            members = dict(self._members)
        for rank, member in members.items():
            self._tell(rank, member, {"round": this.number, "kind": this.kind, "step": this.step})
        self._gate.decide(this.number, this.kind, this.step)

    def _listen(self) -> None:
        while not self._closed.is_set():
            try:
                self._server = lines.listen(self._address)
                break
            except OSError as error:
                log.warning("cannot listen at %s:%s yet: %s", *self._address, error)
                self._closed.wait(1.0)
        while not self._closed.is_set():
            assert self._server is not None
            try:
                connection, _ = self._server.accept()
            except OSError:
                self._closed.wait(RETRY_S)
                continue
            threading.Thread(target=self._serve, args=(connection,), name="tidegate-member", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        rank = -1
        member: Optional[lines.Lines] = None
        try:
            member = lines.accept(connection, self._key)
            rank = int((member.receive() or {}).get("rank", -1))
            if not 0 < rank < self._world_size:
                raise lines.LinesError(f"rank {rank} is not of this gang")
            for message in self._welcome(rank, member):
                member.send(message)
            while True:
                message_in = member.receive()
                if message_in is None:
                    return
                self._take(rank, message_in)
        except (OSError, ValueError, TypeError) as error:
            log.debug("connection of rank %s ended: %s", rank, error)
        finally:
            with self._changed:
                if member is not None and self._members.get(rank) is member:
                    del self._members[rank]
            if member is not None:
                member.close()

    def _welcome(self, rank: int, member: lines.Lines) -> List[Dict[str, Any]]:
        """What a rank that comes late, or comes again, must know."""
        with self._changed:
            self._members[rank] = member
            decided = sorted(self._rounds.values(), key=lambda one: one.number)
            messages: List[Dict[str, Any]] = [
                {"round": one.number, "kind": one.kind, "step": one.step} for one in decided
            ]
            if self._current is not None:
                messages.append({"freeze": self._current.number})
            return messages

    def _take(self, rank: int, message: Dict[str, Any]) -> None:
        if "flag" in message:
            kind = SAVE if message["flag"] == SAVE else STOP
            self._flags.put(Flag(kind, rank, str(message.get("key", ""))))
        elif "at" in message:
            with self._changed:
                if self._current is not None and self._current.number == message.get("round"):
                    self._current.answers[rank] = int(message["at"])
                    self._changed.notify_all()

    def _tell(self, rank: int, member: lines.Lines, message: Dict[str, Any]) -> None:
        try:
            member.send(message)
        except OSError as error:
            log.debug("rank %s cannot be told: %s", rank, error)


class Follower:
    """The part of every other rank: keeps a connection to rank 0, sends flags, answers freezes."""

    def __init__(self, gate: Gate, rank: int, address: Tuple[str, int], key: bytes) -> None:
        self._gate = gate
        self._rank = rank
        self._address = address
        self._key = key
        self._lock = threading.Lock()
        self._flags: List[Dict[str, Any]] = []
        self._lines: Optional[lines.Lines] = None
        self._closed = threading.Event()

    def start(self) -> None:
        """Begin to connect, in a thread that ends with the process."""
        threading.Thread(target=self._run, name="tidegate-agree", daemon=True).start()

    def flag(self, kind: str, key: str) -> None:
        """This rank's wish; sent again after every reconnect, which rank 0 recognises."""
        message = {"flag": kind, "key": key}
        with self._lock:
            self._flags.append(message)
            connected = self._lines
        if connected is not None:
            # On an error the reader sees the end too, connects again and sends all flags.
            with contextlib.suppress(OSError):
                connected.send(message)

    def close(self) -> None:
        """End the thread and the connection."""
        self._closed.set()
        with self._lock:
            connected = self._lines
        if connected is not None:
            connected.close()

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                self._follow()
            except (OSError, ValueError, TypeError, KeyError) as error:
                log.debug("no connection to rank 0: %s", error)
            self._closed.wait(RETRY_S)

    def _follow(self) -> None:
        connected = lines.connect(self._address, self._key)
        try:
            connected.send({"rank": self._rank})
            with self._lock:
                self._lines = connected
                flags = list(self._flags)
            for message in flags:
                connected.send(message)
            while True:
                message_in = connected.receive()
                if message_in is None:
                    return
                if "freeze" in message_in:
                    number = int(message_in["freeze"])
                    connected.send({"round": number, "at": self._gate.freeze(number)})
                else:
                    self._gate.decide(int(message_in["round"]), str(message_in["kind"]), int(message_in["step"]))
        finally:
            with self._lock:
                self._lines = None
            connected.close()
