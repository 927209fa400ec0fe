"""Which URLs are folders of this machine, and which settings of the local backend make sense."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from backends.local.config import LocalConfig
from backends.local.folders import local_path

POOL = {"name": "spot", "nodes": 2, "accelerators": 2, "memory": "16Gi"}


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("file:///c/a%20b/attempt-1", "/c/a b/attempt-1"),
        ("/c/attempt-1", "/c/attempt-1"),
        ("file://localhost/c", "/c"),
        ("file://elsewhere/c", None),
        ("s3://bucket/c", None),
        ("c/attempt-1", None),
        ("file:///c/../etc", None),
        ("", None),
    ],
)
def test_only_plain_paths_of_this_machine_are_folders(url: str, path: str | None) -> None:
    found = local_path(url)
    assert (None if found is None else str(found)) == path


def test_memory_is_a_quantity_and_nodes_have_names(tmp_path: Path) -> None:
    config = LocalConfig.model_validate({"state_dir": tmp_path, "pools": [POOL, {**POOL, "name": "b", "memory": "2G"}]})
    first, second = config.pools
    assert first.per_node.memory == 16 * 1024**3
    assert second.per_node.memory == 2 * 1000**3
    assert first.per_node.accelerators == 2000
    assert first.slots == ("spot-0", "spot-1")


@pytest.mark.parametrize(
    "pools",
    [[], [{**POOL, "memory": "much"}], [{**POOL, "name": "Ab"}], [{**POOL, "gpus": 1}], [POOL, POOL]],
    ids=["none", "quantity", "name", "unknown-setting", "same-nodes"],
)
def test_settings_without_sense_are_refused(tmp_path: Path, pools: list[object]) -> None:
    with pytest.raises(ValidationError):
        LocalConfig.model_validate({"state_dir": tmp_path, "pools": pools})
