"""Starting a launch whole, and taking it away: seats, instances, members, and back again when any of it fails."""

import secrets
import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Final

from backends.environment import members
from backends.errors import BackendError, NoCapacity, OutcomeUnknown
from backends.local.client import Files
from backends.local.config import LocalPool
from backends.local.files import locked
from backends.local.folders import make_for
from backends.local.machines import Machines
from backends.local.placing import NOTHING, Seat, Slot, choose_port, foreign_shares, place, slot
from backends.local.records import InstanceView, Placement, Record
from backends.local.render import member_specs

FIRST_PORT: Final = 20_000  # below the range from which systems give ports away
LAST_PORT: Final = 31_999
PORTS_EACH: Final = 3


class Launcher:
    """Brings members up and down. The caller holds the launch's lock."""

    def __init__(self, files: Files, machines: Machines, port_free: Callable[[int], bool]) -> None:
        self.files = files
        self.machines = machines
        self.config = files.config
        self.port_free = port_free

    def start(self, record: Record) -> None:
        """All members run when it returns. NoCapacity: none does. OutcomeUnknown: call again."""
        placement = record.placement or self._take_seats(record)
        try:
            placement = self._bring_up(record, placement)
            self._start_members(record, placement)
        except OutcomeUnknown:
            if self._lost_one(placement):
                self.roll_back(replace(record, placement=placement))
            raise
        except BackendError:
            self.roll_back(replace(record, placement=placement))
            raise
        self.files.write_placement(record.key, replace(placement, started=True))

    def roll_back(self, record: Record) -> None:
        """No member is left and the seats are free; the launch is as it was when it was prepared."""
        self.remove_members(record)
        if record.placement is not None:
            self.files.clear_placement(record.key)

    def remove_members(self, record: Record) -> None:
        """Kill and forget the members at every agent that lives."""
        instances = self.instances(record)
        for instance in instances:
            if not instance.alive:
                self.machines.sweep(instance)
        self.machines.call_all(instances, "DELETE", f"/members?launch={record.key}")

    def instances(self, record: Record) -> Sequence[InstanceView]:
        """The instances that the launch has members on. One without a folder counts as long gone."""
        if record.placement is None:
            return []
        return [
            self.machines.view(name) or InstanceView(name, node, alive=False, state="ended", socket="", folder="")
            for node, name in sorted(record.placement.instances.items())
        ]

    def slots(self, *, without: str = "") -> list[Slot]:
        """Every node with what foreign load and our live launches (but one) take on it."""
        found: dict[str, Slot] = {}
        for pool in self.config.pools:
            load = self.files.foreign(pool.name)
            for node in pool.slots:
                foreign = sum(foreign_shares(load.get(node, {}), pool.per_node).values(), NOTHING)
                found[node] = slot(node, pool.name, pool.per_node, foreign, is_open=self.is_open(node))
        for record in self.placed():
            if record.key != without and record.placement is not None:
                for seat in self._held(record, record.placement):
                    if seat.node in found:
                        found[seat.node].take(seat)
        return list(found.values())

    def _held(self, record: Record, placement: Placement) -> Iterable[Seat]:
        """Seats that are taken: a member that a resize has told to go keeps its own until it has ended."""
        yield from (*placement.seats, *placement.joining)
        if placement.leaving:
            statuses = self.machines.statuses(record)
            yield from (s for s in placement.leaving if statuses.get(s.rank, {}).get("state") != "ended")

    def placed(self) -> Iterable[Record]:
        """Live launches that hold seats."""
        found = []
        for key in self.files.live_keys():
            with suppress(ValueError, KeyError, TypeError):  # One spoilt record must not stop every other launch.
                record = self.files.record(key)
                if record is not None and record.placement is not None:
                    found.append(record)
        return found

    def is_open(self, node: str) -> bool:
        """Whether something new may be started on a node: not while its instance is being taken away."""
        instance = self.machines.on_slot(node)
        return instance is None or not instance.alive or instance.usable

    def _take_seats(self, record: Record) -> Placement:
        with self.files.seat_lock():
            seats = place(members(record.request), self.slots(without=record.key))
            if isinstance(seats, str):
                raise NoCapacity(f"{self.files.name}: {seats}")
            ports = self._ports(record.key)
            placement = Placement(
                seats=seats,
                instances={},
                master_port=ports[0],
                coord_port=ports[1],
                gang_port=ports[2],
                secret=secrets.token_hex(16),
                at=time.time(),
            )
            self.files.write_placement(record.key, placement)
            return placement

    def _ports(self, key: str) -> list[int]:
        used = {port for record in self.placed() if record.placement for port in record.placement.ports}
        chosen: list[int] = []
        start = zlib.crc32(key.encode())
        while len(chosen) < PORTS_EACH:
            port = choose_port(FIRST_PORT, LAST_PORT, frozenset(used), start)
            used.add(port)
            if self.port_free(port):
                chosen.append(port)
        return chosen

    def _start_members(self, record: Record, placement: Placement) -> None:
        if record.uid is not None and record.request.checkpoint_url:
            make_for(record.request.checkpoint_url, record.uid)
        specs = member_specs(
            record.request,
            placement,
            self.config,
            uid=record.uid,
            logs=self.files.log(record.key, 0).parent,
        )
        for seat in placement.seats:
            with locked(self.files.slot_lock(seat.node), self.config.timeout_s / 8):
                instance = self.machines.view(placement.instances[seat.node])
                if instance is None or not instance.alive:
                    raise OutcomeUnknown(f"{self.files.name}: {seat.node} went while members were being started")
                self.machines.call(instance, "POST", "/members", specs[seat.rank])

    def _bring_up(self, record: Record, placement: Placement) -> Placement:
        """A living instance under every seat. They are recorded before anything runs in them."""
        if placement.instances:
            return placement
        chosen = {}
        with ExitStack() as locks:  # In the order of their names, as everybody takes them.
            for node in sorted({seat.node for seat in placement.seats}):
                locks.enter_context(locked(self.files.slot_lock(node), self.config.timeout_s / 2))
                chosen[node] = self.machines.begin(self.pool_of(node), node)
            self.machines.wait(chosen.values(), self.config.timeout_s / 2)
        placement = replace(placement, instances=chosen)
        self.files.write_placement(record.key, placement)
        return placement

    def pool_of(self, node: str) -> LocalPool:
        """The pool of a node."""
        return next(pool for pool in self.config.pools if node in pool.slots)

    def _lost_one(self, placement: Placement) -> bool:
        views = [self.machines.view(name) for name in placement.instances.values()]
        return any(view is None or not view.alive for view in views)
