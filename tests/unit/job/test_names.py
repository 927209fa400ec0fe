"""CK-02: the step in a name is a number, not a text and not a file time."""

import pytest

from tidegate import job


@pytest.mark.parametrize(
    ("names", "newest"),
    [
        (["iter-40000-ckpt.pth", "iter-960000-ckpt.pth", "iter-1080000-ckpt.pth"], "iter-1080000-ckpt.pth"),
        (["step_500", "step_2500"], "step_2500"),
        (["100000", "0900000"], "0900000"),
        (["000100", "handpicked"], "000100"),
        (["llama-7b-step-200.pt", "llama-13b-step-100.pt"], "llama-7b-step-200.pt"),
        (["step_300", "step_400.tmp"], "step_300"),
        (["handpicked"], None),
        ([], None),
    ],
)
def test_ck_02_newest_step_is_numeric(names: list[str], newest: str | None) -> None:
    assert job.newest_step(names) == newest
    assert job.newest_step(reversed(names)) == newest


def test_ck_02_text_order_would_have_lost_steps() -> None:
    names = ["iter-960000-ckpt.pth", "iter-1080000-ckpt.pth"]
    assert max(names) == "iter-960000-ckpt.pth"
    assert job.newest_step(names) == "iter-1080000-ckpt.pth"
