"""Another number of members under a running launch: the last ones leave, new ones come behind those that stay.

What leaves keeps its seat until it has ended, so that nobody is started beside it; what comes holds its seat before it
starts, and is taken away again whole when any of it does not come up. The caller holds the launch's lock.
"""

from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Final

from backends.environment import members
from backends.errors import BackendError, NoCapacity, OutcomeUnknown, Refused, Throttled
from backends.local.client import Files
from backends.local.files import locked
from backends.local.launching import Launcher
from backends.local.looking import Looker
from backends.local.machines import Machines
from backends.local.placing import place
from backends.local.records import Placement, Record
from backends.local.render import member_specs
from backends.types import GroupLaunch, LaunchRequest, NoticeKind
from policies.vocabulary import Reason

LEAVING_S: Final = 1.0  # after which a caller asks again whether the places of those that leave are free


class Resizer:
    """Changes the members of launches that run."""

    def __init__(self, files: Files, machines: Machines, launcher: Launcher, looker: Looker) -> None:
        self.files = files
        self.machines = machines
        self.launcher = launcher
        self.looker = looker

    def resize(self, record: Record, name: str, replicas: int, nodes: Sequence[str]) -> None:
        """See `backends.port.Resizes`."""
        group = self._group(record, name, replicas, nodes)
        if record.ended is not None or record.stop is not None:
            return
        request = _resized(record.request, group, replicas, tuple(nodes))
        placement = record.placement
        if placement is None:
            self.files.rewrite(record, request)
        elif not placement.started:
            raise Throttled(f"{self.files.name}: {record.key} is still being started", retry_after_s=LEAVING_S)
        elif replicas < group.replicas:
            self._shrink(record, request, placement, group.first_rank + replicas)
        elif replicas > group.replicas:
            self._grow(record, request, self._settled(record, placement), group)
        else:
            self._tell(record, placement)  # once more: the last call may have got lost on the way

    def _group(self, record: Record, name: str, replicas: int, nodes: Sequence[str]) -> GroupLaunch:
        group = next((group for group in record.request.groups if group.name == name), None)
        if group is None:
            raise Refused(f"{self.files.name}: {record.key} has no group {name}", reason=Reason.INVALID_PARAMETER)
        if any(other.first_rank > group.first_rank for other in record.request.groups):
            text = (
                f"{self.files.name}: ranks of other groups follow those of {name}; only the last group can be resized"
            )
            raise Refused(text, reason=Reason.INVALID_PARAMETER)
        if replicas < 1 or (nodes and len(nodes) != replicas):
            text = f"{self.files.name}: replicas must be at least 1, and nodes name one node for each or none"
            raise Refused(text, reason=Reason.INVALID_PARAMETER)
        return group

    def _shrink(self, record: Record, request: LaunchRequest, placement: Placement, first_gone: int) -> None:
        stay = tuple(seat for seat in placement.seats if seat.rank < first_gone)
        gone = tuple(seat for seat in placement.seats if seat.rank >= first_gone)
        placement = replace(placement, seats=stay, leaving=(*placement.leaving, *gone), resized=True)
        self.files.write_placement(record.key, placement)
        self.files.rewrite(record, request)
        self._tell(record, placement)

    def _tell(self, record: Record, placement: Placement) -> None:
        statuses = self.machines.statuses(replace(record, placement=placement))
        ranks = [seat.rank for seat in placement.leaving if statuses.get(seat.rank, {}).get("state") != "ended"]
        if ranks:
            told = replace(record, placement=placement)
            self.looker.tell_to_stop(told, ranks, NoticeKind.RESIZE, float(record.request.grace_s))

    def _settled(self, record: Record, placement: Placement) -> Placement:
        """Without members that have left by now, and without the rest of a growth that was interrupted."""
        record = replace(record, placement=placement)
        statuses = self.machines.statuses(record)
        views = {view.id: view for view in self.launcher.instances(record)}
        ended = []
        for seat in placement.leaving:
            alive = views[placement.instances[seat.node]].alive
            if alive and statuses.get(seat.rank, {}).get("state") != "ended":
                text = f"{self.files.name}: rank {seat.rank} of {record.key} is still leaving"
                raise Throttled(text, retry_after_s=LEAVING_S)
            ended.append(seat.rank)
        self._remove(record, [*ended, *(seat.rank for seat in placement.joining)])
        placement = replace(placement, leaving=(), joining=())
        self.files.write_placement(record.key, placement)
        return placement

    def _grow(self, record: Record, request: LaunchRequest, placement: Placement, group: GroupLaunch) -> None:
        first_new = group.first_rank + group.replicas
        with self.files.seat_lock():
            fresh = [member for member in members(request) if member.rank >= first_new]
            seats = place(fresh, self.launcher.slots())
            if isinstance(seats, str):
                raise NoCapacity(f"{self.files.name}: {seats}")
            placement = replace(placement, joining=seats)
            self.files.write_placement(record.key, placement)
        try:
            placement = self._bring_up(record, placement)
            self._start(record, request, placement)
        except BackendError:
            with suppress(BackendError):  # the next resize, or the end of the launch, takes away what is left
                self._remove(replace(record, placement=placement), [seat.rank for seat in placement.joining])
                self.files.write_placement(record.key, replace(placement, joining=()))
            raise
        grown = replace(placement, seats=(*placement.seats, *placement.joining), joining=(), resized=True)
        self.files.write_placement(record.key, grown)
        self.files.rewrite(record, request)

    def _bring_up(self, record: Record, placement: Placement) -> Placement:
        """A living instance under every new seat, recorded before anything runs in it."""
        chosen = dict(placement.instances)
        with ExitStack() as locks:  # in the order of their names, as everybody takes them
            for node in sorted({seat.node for seat in placement.joining}):
                locks.enter_context(locked(self.files.slot_lock(node), self.files.config.timeout_s / 4))
                chosen[node] = self.machines.begin(self.launcher.pool_of(node), node)
            self.machines.wait({chosen[seat.node] for seat in placement.joining}, self.files.config.timeout_s / 4)
        placement = replace(placement, instances=chosen)
        self.files.write_placement(record.key, placement)
        return placement

    def _start(self, record: Record, request: LaunchRequest, placement: Placement) -> None:
        whole = replace(placement, seats=(*placement.seats, *placement.joining))
        logs = self.files.log(record.key, 0).parent
        specs = member_specs(request, whole, self.files.config, uid=record.uid, logs=logs)
        for seat in placement.joining:
            with locked(self.files.slot_lock(seat.node), self.files.config.timeout_s / 8):
                instance = self.machines.view(placement.instances[seat.node])
                if instance is None or not instance.alive:
                    raise OutcomeUnknown(f"{self.files.name}: {seat.node} went while members were being started")
                # Without the heartbeats of a gang: these members came later, and are missed by nobody.
                self.machines.call(instance, "POST", "/members", {**specs[seat.rank], "gang": None})

    def _remove(self, record: Record, ranks: Sequence[int]) -> None:
        if ranks:
            listed = ",".join(str(rank) for rank in sorted(ranks))
            url = f"/members?launch={record.key}&ranks={listed}"
            self.machines.call_all(self.launcher.instances(record), "DELETE", url)


def _resized(request: LaunchRequest, group: GroupLaunch, replicas: int, nodes: tuple[str, ...]) -> LaunchRequest:
    kept = group.nodes[:replicas] if len(group.nodes) >= replicas else ()
    changed = replace(group, replicas=replicas, nodes=nodes or kept)
    return replace(
        request,
        groups=tuple(changed if each is group else each for each in request.groups),
        num_nodes=request.num_nodes - group.replicas + replicas,
        target_replicas=replicas if request.target_replicas else 0,
    )
