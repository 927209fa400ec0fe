"""The API on a real database, a small federation in it, and a client per principal."""

import contextlib
from collections.abc import Callable, Iterator

import httpx
import pytest
from fastapi import FastAPI
from sqlalchemy import Engine

from gateway.api.app import create_app
from gateway.api.deps import Deps
from gateway.settings import Settings
from tests.harness.federation import Federation
from tests.harness.server import serving

Client = Callable[[str], httpx.Client]


@pytest.fixture
def federation(engine: Engine) -> Federation:
    """Tenants acme, acme/nlp, acme/vision and other; two pools of four nodes with eight cards; a token per role."""
    return Federation.made(engine)


@pytest.fixture
def deps(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Deps:
    settings = Settings(data_dir=tmp_path_factory.mktemp("data"), workdir_max_bytes=1 << 20)
    return Deps(engine=engine, settings=settings, cursor_key=b"a key of the tests")


@pytest.fixture
def app(deps: Deps) -> FastAPI:
    return create_app(deps)


@pytest.fixture
def url(app: FastAPI) -> Iterator[str]:
    with serving(app) as base:
        yield base


@pytest.fixture
def as_(url: str, federation: Federation) -> Iterator[Client]:
    """`as_("nlp")` is a client with that principal's token."""
    with contextlib.ExitStack() as stack:

        def client(principal: str) -> httpx.Client:
            headers = {"Authorization": f"Bearer {federation.tokens[principal]}"}
            return stack.enter_context(httpx.Client(base_url=url, headers=headers, timeout=30))

        yield client
