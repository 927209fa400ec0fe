"""One Temporal server in memory for all tests of workflows."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.embedded import temporal


@pytest.fixture(scope="session")
def temporal_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder: Path = tmp_path_factory.mktemp("temporal")
    server = temporal.start(folder, durable=False)
    try:
        yield server.address
    finally:
        server.stop()
