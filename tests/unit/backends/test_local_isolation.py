"""Who a job runs as: as root the tenant's own user, unless an operator said otherwise in so many words."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from backends.errors import Misconfigured
from backends.local.backend import LocalBackend
from backends.registry import build
from backends.types import Phase
from tests.builders.launch import a_group, a_launch
from tests.contract.harness import output
from tests.contract.local_world import LocalWorld
from tests.contract.steps import until

POOLS = [{"name": "spot", "nodes": 1, "accelerators": 1}]
WHO = ("/bin/sh", "-c", 'id -u; test -r "$0" && echo reads || echo "cannot read"')
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can run a job as another user")
as_a_person = pytest.mark.skipif(os.geteuid() == 0, reason="root is no ordinary user")


@pytest.fixture
def world() -> Iterator[LocalWorld]:
    world = LocalWorld()
    yield world
    world.close()


@pytest.fixture
def private(world: LocalWorld) -> Path:
    """A folder that other users may not pass."""
    folder = world.folder / "home"
    folder.mkdir(mode=0o700)
    return folder


def a_backend(state_dir: Path, **more: str) -> LocalBackend:
    backend = build("here", "local", {"state_dir": str(state_dir), "pools": POOLS, **more}, "gw")
    assert isinstance(backend, LocalBackend)
    return backend


def said(backend: LocalBackend, secret: Path) -> list[str]:
    """What a job of a tenant says of who it is and what it may read."""
    handle = backend.prepare(a_launch(a_group("spot", (*WHO, str(secret)))))
    try:
        backend.start(handle)
        until(backend, handle, Phase.ENDED)
        return output(backend, handle, 0).decode().splitlines()
    finally:
        backend.end_instances()


@as_root
@pytest.mark.parametrize("more", [{}, {"isolation": "auto"}, {"isolation": "uid"}], ids=["unsaid", "auto", "uid"])
def test_as_root_a_job_runs_as_its_tenant_even_if_our_own_python_lives_in_a_private_home(
    world: LocalWorld, private: Path, monkeypatch: pytest.MonkeyPatch, more: dict[str, str]
) -> None:
    python = private / "python"
    python.symlink_to(sys.executable)
    secret = world.folder / "secret"
    secret.write_text("of the operator")
    secret.chmod(0o600)
    backend = a_backend(world.folder / "open", **more)
    monkeypatch.setattr(sys, "executable", str(python))
    assert backend.capabilities.tenant_isolation
    uid, reads = said(backend, secret)
    assert int(uid) >= 60_000
    assert reads == "cannot read"


@as_root
@pytest.mark.parametrize("more", [{}, {"isolation": "auto"}, {"isolation": "uid"}], ids=["unsaid", "auto", "uid"])
def test_a_state_folder_that_tenants_cannot_reach_is_said_so_with_the_remedies_and_runs_nothing_as_root(
    private: Path, more: dict[str, str]
) -> None:
    backend = a_backend(private / "state", **more)
    request = a_launch(a_group("spot", WHO))
    for act in (backend.capacity, backend.list_owned, lambda: backend.prepare(request)):
        with pytest.raises(Misconfigured) as caught:
            act()
        for word in (f"chmod o+x {private}", "state_dir", "isolation: none"):
            assert word in str(caught.value)
    assert not (private / "state").exists()
    private.chmod(0o711)
    assert backend.capacity(), "mended by the first remedy, without a restart"


@as_root
def test_none_runs_as_us_only_because_it_was_said(private: Path) -> None:
    backend = a_backend(private / "state", isolation="none")
    assert not backend.capabilities.tenant_isolation
    assert said(backend, private)[0] == "0"


@as_a_person
def test_without_root_jobs_run_as_us_and_uid_is_refused(private: Path) -> None:
    backend = a_backend(private / "state")
    assert not backend.capabilities.tenant_isolation
    assert said(backend, private)[0] == str(os.geteuid())
    with pytest.raises(Misconfigured, match="isolation uid needs root"):
        a_backend(private / "other", isolation="uid")
