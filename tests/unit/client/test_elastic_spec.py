"""The sizes that a spec allows, by the same arithmetic as the core's."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from policies.elastic.sizes import members_step
from tidegate.wire.spec import JobSpec


def spec(**fields: Any) -> JobSpec:
    return JobSpec.model_validate({"name": "j", "run": "x", **fields})


@given(each=st.sampled_from([0, 1, 2, 4, 8]), pp=st.integers(1, 6), multiple=st.integers(1, 4))
def test_the_step_of_a_spec_is_the_cores(each: int, pp: int, multiple: int) -> None:
    tp = max(1, each)
    members = 12 * pp * multiple
    found = spec(
        resources={"accelerators": each},
        num_nodes=members,
        parallelism={"tp": tp, "pp": pp},
        elastic={"min": 1, "target": members, "max": members, "multiple_of": multiple},
    )
    assert found.size_step == members_step(tp * pp, multiple, each)


def test_tp8_pp4_dp2_on_eight_card_nodes_is_eight_nodes() -> None:
    found = spec(
        resources={"accelerators": "H100:8"}, num_nodes=8, parallelism={"tp": 8, "pp": 4, "dp": 2}, launcher="plain"
    )
    assert found.num_nodes == 8
    with pytest.raises(ValidationError, match="so dp is 2"):
        spec(resources={"accelerators": "H100:8"}, num_nodes=8, parallelism={"tp": 8, "pp": 4, "dp": 1})


def test_of_several_groups_the_elastic_one_is_the_one_that_may_have_fewer() -> None:
    groups = [{"name": "head"}, {"name": "workers", "replicas": 8, "min_replicas": 2}]
    found = spec(groups=groups, elastic={"min": 2, "target": 8, "max": 8})
    assert found.elastic_group == "workers"
    assert spec(elastic={"min": 1, "target": 2, "max": 2}).elastic_group == "main"
    assert spec().elastic_group is None
