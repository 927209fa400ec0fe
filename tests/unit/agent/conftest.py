from collections.abc import Iterator

import pytest

from tests.harness.agents import Agent, agents


@pytest.fixture
def agent() -> Iterator[Agent]:
    with agents(1) as found:
        yield found[0]
