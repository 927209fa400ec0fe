"""One parameter per backend, and the table of clauses at the end of a run."""

from collections.abc import Callable, Generator, Iterator
from importlib import import_module

import pytest

from backends.port import Backend
from tests.contract.harness import Harness, Offer

WORLDS = {"fake": "tests.contract.fake_world:FakeWorld", "local": "tests.contract.local_world:LocalWorld"}
MARKS = {"passed": "yes", "failed": "NO", "skipped": "-"}
RESULTS = pytest.StashKey[dict[tuple[str, str], str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "clause(words): the sentence of the backends' contract that a test proves")
    config.stash[RESULTS] = {}


@pytest.fixture(params=sorted(WORLDS))
def harness(request: pytest.FixtureRequest) -> Iterator[Harness]:
    module, _, name = WORLDS[request.param].partition(":")
    world: Harness = getattr(import_module(module), name)()
    yield world
    world.close()


@pytest.fixture
def backend(harness: Harness) -> Backend:
    return harness.backend()


@pytest.fixture
def require(harness: Harness, backend: Backend) -> Callable[..., None]:
    """Skip a clause that this backend does not promise (a capability), or that its world cannot bring about."""

    def check(*needs: str | Offer) -> None:
        for need in needs:
            if isinstance(need, Offer):
                if need not in harness.offers:
                    pytest.skip(f"{harness.name}: the world cannot {need}")
            elif not getattr(backend.capabilities, need):
                pytest.skip(f"{harness.name} declares no {need}")

    return check


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    clause = item.get_closest_marker("clause")
    callspec = getattr(item, "callspec", None)
    if clause is not None and callspec is not None and "harness" in callspec.params:
        decides = report.when == "call" or report.outcome != "passed"
        if decides:
            results = item.config.stash[RESULTS]
            key = (clause.args[0], callspec.params["harness"])
            worse = results.get(key) == "failed" or (results.get(key) == "passed" and report.outcome == "skipped")
            results[key] = results[key] if worse else report.outcome
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    results = config.stash.get(RESULTS, {})
    if not results:
        return
    worlds = sorted({world for _, world in results})
    clauses = list(dict.fromkeys(clause for clause, _ in results))
    terminalreporter.section("the backends' contract")
    terminalreporter.write_line(f"{'clause':<72}" + "".join(f"{world:>10}" for world in worlds))
    for clause in clauses:
        marks = (MARKS.get(results.get((clause, world), ""), "") for world in worlds)
        terminalreporter.write_line(f"{clause:<72}" + "".join(f"{mark:>10}" for mark in marks))
