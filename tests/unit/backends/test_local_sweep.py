"""What is left of a dead instance is killed, and never anything else. Pure: no process is touched here."""

from pathlib import Path

import pytest

from backends.local.machines import belongs

ROOT = Path("/srv/state/instances")
NAME = "i-0123456789ab"


def environment(notice: str) -> bytes:
    return f"PATH=/usr/bin:/bin\0HOME=/root\0TIDEGATE_NOTICE_FILE={notice}\0".encode()


def test_a_member_of_the_instance_belongs_to_it() -> None:
    notice = f"{ROOT}/{NAME}/agent/members/tg-1/0/job/notice.json"
    assert belongs(environment(notice), ROOT, NAME)


@pytest.mark.parametrize("name", ["", "/", ".", "i-", "i-0", "..", "i-0123456789AB", f"{NAME}/"])
def test_nothing_belongs_to_an_instance_without_a_proper_name(name: str) -> None:
    """An instance whose folder is gone once had the empty text for it, which every process's PATH contains."""
    notice = f"{ROOT}/{NAME}/agent/members/tg-1/0/job/notice.json"
    assert not belongs(environment(notice), ROOT, name)
    assert not belongs(b"PATH=/usr/bin:/bin\0PWD=/\0", ROOT, name)


@pytest.mark.parametrize(
    "strange",
    [
        b"",
        b"PATH=/usr/bin:/bin\0PWD=/srv/state/instances/i-0123456789ab/agent/members\0",
        b"NOTE=TIDEGATE_NOTICE_FILE=/srv/state/instances/i-0123456789ab/agent/members/x\0",
        environment("/srv/other/instances/i-0123456789ab/agent/members/tg-1/0/job/notice.json"),
        environment("/srv/state/instances/i-0123456789ac/agent/members/tg-1/0/job/notice.json"),
    ],
)
def test_strangers_do_not_belong(strange: bytes) -> None:
    assert not belongs(strange, ROOT, NAME)
