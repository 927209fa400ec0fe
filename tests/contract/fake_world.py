"""The in-memory fake in the contract suite: it must be as good as what it stands for."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from backends.environment import members
from backends.port import Backend
from backends.types import Handle, NoticeKind
from policies.snapshot import Resources
from tests.builders.launch import GPU
from tests.contract.harness import Offer, Program
from tests.fakes.backend import FakeBackend
from tests.fakes.cluster import SIGTERM, FakeCluster, equal_nodes
from tests.fakes.faults import Fault


class FakeWorld:
    """A cluster in memory whose members carry out the programs."""

    name = "fake"
    pool = "pool"
    nodes = 2
    deadline_s = 2.0
    offers = frozenset(Offer) - {Offer.INTRUDE}

    def __init__(self) -> None:
        self.cluster = FakeCluster({self.pool: equal_nodes(self.pool, self.nodes, gpus=2)})
        self.cluster.on_run = self._run
        self.cluster.on_told = self._told
        self.cluster.on_join = self._joined
        self._foreign = Resources()

    def backend(self, gateway: str = "gw") -> Backend:
        return FakeBackend(self.cluster, gateway=gateway)

    def command(self, program: Program, *arguments: str) -> tuple[str, ...]:
        return (program.value, *arguments)

    def lose_answer(self, backend: Backend, operation: str) -> None:
        self.cluster.faults.inject(operation, Fault.LOST_ANSWER)

    @contextmanager
    def dark(self, backend: Backend) -> Iterator[None]:
        self.cluster.faults.dark = True
        yield
        self.cluster.faults.dark = False

    @contextmanager
    def hang(self, backend: Backend, handle: Handle) -> Iterator[None]:
        for operation in ("stop", "observe", "notify"):
            self.cluster.faults.inject(operation, Fault.SLOW)
        yield

    def refused(self) -> Resources:
        return Resources(64 * GPU)

    def evict(self, backend: Backend, handle: Handle) -> None:
        self.cluster.evict(handle.key)

    def use_foreign(self, amount: Resources, owner: str = "") -> None:
        self._foreign = amount
        self.cluster.set_foreign(f"{self.pool}-0", amount, owner)

    def foreign_lives(self) -> bool:
        return self.cluster.pools[self.pool][0].foreign != Resources()

    def traces(self, key: str) -> Sequence[str]:
        return [key] if key in self.cluster.launches else []

    def begun(self, backend: Backend, handle: Handle, rank: int) -> int:
        return self.cluster.launches[handle.key].starts

    def told(self, backend: Backend, handle: Handle) -> Sequence[int]:
        launch = self.cluster.launches[handle.key]
        return [rank for rank in launch.ranks if b"told\n" in launch.logs.get(rank, b"")]

    def intrude(self, backend: Backend, victim: Handle) -> Sequence[str]:
        raise AssertionError("the fake has no processes")

    def close(self) -> None:
        """Memory is let go."""

    def _run(self, key: str) -> None:
        launch = self.cluster.launches[key]
        for member in members(launch.request):
            program, *arguments = member.group.command
            say = {Program.SAY: arguments, Program.ENV: self._variables(key, member.rank, arguments)}
            lines = ["started", *say.get(Program(program), [])]
            self.cluster.write(key, member.rank, "".join(f"{line}\n" for line in lines).encode())
        for member in members(launch.request):
            program, *arguments = member.group.command
            if program in {Program.SAY, Program.ENV}:
                self.cluster.finish(key, member.rank, 0)
            elif program == Program.EXIT:
                self.cluster.finish(key, member.rank, int(arguments[0]))
            elif program == Program.FAIL_RANK and member.rank == int(arguments[0]):
                self.cluster.finish(key, member.rank, int(arguments[1]))

    def _joined(self, key: str, ranks: tuple[int, ...]) -> None:
        for rank in ranks:
            self.cluster.write(key, rank, b"started\n")

    def _variables(self, key: str, rank: int, names: list[str]) -> list[str]:
        environment = {"PATH": "/usr/bin", **self.cluster.launches[key].environment(rank)}
        return [json.dumps(environment.get(name)) for name in names]

    def _told(self, key: str, kind: NoticeKind) -> None:
        launch = self.cluster.launches[key]
        stopping = bool(launch.stops)
        for member in members(launch.request):
            program = member.group.command[0]
            if program == Program.HEAR:
                self.cluster.write(key, member.rank, b"told\n")
            if program == Program.SAVE:
                self.cluster.finish(key, member.rank, 75)
            elif stopping:
                self.cluster.finish(key, member.rank, SIGTERM)
