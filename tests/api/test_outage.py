"""The ledger is away: every route says so, and says when to come again; nothing is invented."""

import socket
from pathlib import Path

import httpx

from gateway.api.app import create_app
from gateway.api.deps import Deps
from gateway.ledger.engine import make_engine
from gateway.settings import Settings
from tests.harness.federation import job
from tests.harness.server import serving


def test_without_its_database_the_gate_answers_503_and_lives(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    engine = make_engine(f"postgresql+psycopg://nobody:hidden@127.0.0.1:{port}/none")
    deps = Deps(engine=engine, settings=Settings(data_dir=tmp_path), cursor_key=b"k")
    headers = {"Authorization": "Bearer tg_whatever"}
    with serving(create_app(deps)) as url, httpx.Client(base_url=url, headers=headers, timeout=30) as client:
        for answer in (client.get("/v1/readyz"), client.get("/v1/jobs"), client.post("/v1/jobs", json=job())):
            assert answer.status_code == 503
            assert answer.headers["Content-Type"] == "application/problem+json"
            assert int(answer.headers["Retry-After"]) > 0
            assert "hidden" not in answer.text
        assert client.get("/v1/healthz").status_code == 200
