"""Heartbeats between the agents of one gang: when an instance is gone, the members on the others are failed.

Without this the rest hang in a collective for hours (CASES SP-08). Every agent beats to the one that has rank 0. It
fails members with NodeLost; it never restarts or judges a member that has ended by itself.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from typing import Any, Dict, Optional, Set, Tuple

from tidegate.agent.members import Members
from tidegate.agent.spec import Gang, Spec
from tidegate.job import lines

log = logging.getLogger("tidegate.agent")

#: A rank that was never heard of has this many time-outs, for instances do not start together.
JOIN_TIMEOUTS = 3
LOST = "NodeLost"


class Gangs:
    """The gangs that have members here: one beater each, and a hub where rank 0 is ours."""

    def __init__(self) -> None:
        self._members: Optional[Members] = None
        self._lock = threading.Lock()
        self._beaters: Dict[str, Beater] = {}
        self._hubs: Dict[str, Hub] = {}

    def bind(self, members: Members) -> None:
        """Whose members these are."""
        self._members = members

    def joined(self, asked: Spec) -> None:
        """A member was started here."""
        if asked.gang is None or asked.gang.size == 1 or self._members is None:
            return
        with self._lock:
            if asked.rank == 0 and asked.launch not in self._hubs:
                self._hubs[asked.launch] = Hub(asked.launch, asked.gang)
                self._hubs[asked.launch].start()
            beater = self._beaters.get(asked.launch)
            if beater is None or beater.ended:
                self._beaters[asked.launch] = Beater(asked.launch, asked.gang, self._members)
                self._beaters[asked.launch].start()

    def close(self) -> None:
        """End all threads; the others will miss our members."""
        with self._lock:
            for beater in self._beaters.values():
                beater.close()
            for hub in self._hubs.values():
                hub.close()


class Hub:
    """Beside rank 0: knows when each rank was last heard of, and answers each beat with the ranks that are lost."""

    def __init__(self, launch: str, gang: Gang) -> None:
        self._launch = launch
        self._gang = gang
        self._lock = threading.Lock()
        self._heard: Dict[int, float] = {}
        self._ended: Set[int] = set()
        self._lost: Set[int] = set()
        self._closed = threading.Event()
        self._server: Optional[socket.socket] = None

    def start(self) -> None:
        """Listen in a thread."""
        threading.Thread(target=self._listen, name=f"hub-{self._launch}", daemon=True).start()

    def close(self) -> None:
        """Stop listening."""
        self._closed.set()
        if self._server is not None:
            self._server.close()

    def beat(self, states: Dict[str, str], now: float) -> Dict[str, Any]:
        """Take one agent's beat; what it must know."""
        with self._lock:
            for rank, state in states.items():
                self._heard[int(rank)] = now
                if state == "ended":
                    self._ended.add(int(rank))
            return {"lost": sorted(self._lost), "ended": sorted(self._ended)}

    def judge(self, began: float, now: float) -> bool:
        """Find ranks that are overdue; True once nobody is left to miss."""
        with self._lock:
            for rank in set(range(self._gang.size)) - self._ended - self._lost:
                first = began + (JOIN_TIMEOUTS - 1) * self._gang.timeout_s
                if now - self._heard.get(rank, first) > self._gang.timeout_s:
                    log.warning("%s: rank %s is not heard of", self._launch, rank)
                    self._lost.add(rank)
            return len(self._ended) + len(self._lost) >= self._gang.size

    def _listen(self) -> None:
        began = time.monotonic()
        while not self._closed.is_set():
            try:
                self._server = lines.listen((self._gang.host, self._gang.port))
                break
            except OSError as error:
                log.warning("%s: cannot listen for heartbeats yet: %s", self._launch, error)
                self._closed.wait(self._gang.interval_s)
        if self._server is None:
            return
        self._server.settimeout(self._gang.interval_s)
        over_at: Optional[float] = None
        # Stays a while when all is over, so that the others hear it.
        while not self._closed.is_set() and (over_at is None or time.monotonic() < over_at):
            if self.judge(began, time.monotonic()) and over_at is None:
                over_at = time.monotonic() + 2 * self._gang.timeout_s
            try:
                connection, _ = self._server.accept()
            except OSError:
                continue
            threading.Thread(target=self._serve, args=(connection,), name="hub-peer", daemon=True).start()
        self._server.close()

    def _serve(self, connection: socket.socket) -> None:
        try:
            peer = lines.accept(connection, _key(self._launch, self._gang))
        except OSError as error:
            log.debug("%s: a caller was refused: %s", self._launch, error)
            return
        try:
            peer.settimeout(JOIN_TIMEOUTS * self._gang.timeout_s)
            while not self._closed.is_set():
                message = peer.receive()
                if message is None:
                    return
                peer.send(self.beat(dict(message["states"]), time.monotonic()))
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.debug("%s: a peer's connection ended: %s", self._launch, error)
        finally:
            peer.close()


class Beater:
    """Says that our members are here, hears who is not, and fails ours then."""

    def __init__(self, launch: str, gang: Gang, members: Members) -> None:
        self._launch = launch
        self._gang = gang
        self._members = members
        self._closed = threading.Event()
        self._peer: Optional[lines.Lines] = None
        self._hub_ended = False
        self.ended = False

    def start(self) -> None:
        """Beat in a thread, until every member here has ended and that was said."""
        threading.Thread(target=self._run, name=f"beat-{self._launch}", daemon=True).start()

    def close(self) -> None:
        """Stop beating."""
        self._closed.set()

    def _run(self) -> None:
        heard = time.monotonic() + (JOIN_TIMEOUTS - 1) * self._gang.timeout_s
        while not self._closed.is_set():
            states = self._members.states(self._launch)
            over = all(state == "ended" for state in states.values())
            answered, lost = self._beat(states)
            if answered:
                heard = time.monotonic()
            elif time.monotonic() - heard > self._gang.timeout_s:
                if not over and not self._hub_ended:
                    lost = (0,)
                over = True
            if lost and not self._closed.is_set():
                named = ", ".join(map(str, lost))
                self._members.fail(self._launch, LOST, f"rank {named} is not heard of since {self._gang.timeout_s:g} s")
            if over and (answered or time.monotonic() - heard > self._gang.timeout_s):
                break
            self._closed.wait(self._gang.interval_s)
        self.ended = True
        if self._peer is not None:
            self._peer.close()

    def _beat(self, states: Dict[int, str]) -> Tuple[bool, Tuple[int, ...]]:
        """(answered, ranks that are lost and not ours)."""
        try:
            if self._peer is None:
                self._peer = lines.connect((self._gang.host, self._gang.port), _key(self._launch, self._gang))
                self._peer.settimeout(self._gang.timeout_s / 2)
            self._peer.send({"states": {str(rank): state for rank, state in states.items()}})
            answer = self._peer.receive()
            if answer is None:
                raise lines.LinesError("the hub hung up")
            self._hub_ended = 0 in answer["ended"]
            return True, tuple(rank for rank in answer["lost"] if rank not in states)
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.debug("%s: no answer from the hub: %s", self._launch, error)
            if self._peer is not None:
                self._peer.close()
                self._peer = None
            return False, ()


def _key(launch: str, gang: Gang) -> bytes:
    return f"{launch}|{gang.secret}".encode()
