"""What a workflow does about a resize inside the launch, and about a notice that leaves survivors."""

from dataclasses import replace

from policies.vocabulary import StopCause
from workflows.decide import next_step
from workflows.messages import AttemptView, GroupSeen, ResizeView
from workflows.steps import FinishResize, SendResize, SendStop, Wait

SEEN = GroupSeen("one", "Running", as_of_ms=900, started_ms=100, ready=4)
VIEW = AttemptView(
    "tg-1-1",
    "1",
    1,
    "RUNNING",
    5,
    1_000_000,
    backends=["one"],
    prepared=["one"],
    started=["one"],
    seen=[SEEN],
    started_ms=100,
    stop_asked_ms=1_000_000,
    stop_grace_s=30,
    recovery_s=60,
    kind="inference",
    grace_s=300,
)
WISH = ResizeView("main", 6, 4, ["n1"] * 6)


def test_the_backend_is_asked_once_and_the_members_are_waited_for() -> None:
    assert next_step(replace(VIEW, resize=WISH)) == SendResize("tg-1-1", "one", "main", 6, ["n1"] * 6)
    asked = replace(VIEW, resize=replace(WISH, sent=True))
    assert isinstance(next_step(asked), Wait)
    there = replace(asked, seen=[replace(SEEN, ready=6)])
    assert next_step(there) == FinishResize("tg-1-1", "one", "main", 4, reached=True)


def test_it_has_a_deadline_which_does_not_run_while_the_backend_is_dark() -> None:
    late = replace(VIEW, resize=replace(WISH, sent=True), now_ms=1_000_000 + 90_000)
    assert next_step(late) == FinishResize("tg-1-1", "one", "main", 4, reached=False)
    assert isinstance(next_step(replace(late, dark=["one"])), Wait)


def test_a_cancel_and_a_notice_come_first() -> None:
    cancelled = next_step(replace(VIEW, resize=WISH, want_cancel=True))
    assert isinstance(cancelled, SendStop)
    assert cancelled.cause == StopCause.CANCEL
    noticed = next_step(replace(VIEW, resize=WISH, seen=[replace(SEEN, notice_kind="revoke")]))
    assert isinstance(noticed, SendStop)
    assert noticed.cause == StopCause.REVOCATION


def test_a_notice_that_leaves_survivors_is_a_resize_with_what_time_is_left() -> None:
    seen = replace(SEEN, notice_kind="revoke", notice_deadline_ms=1_000_000 + 20_000)
    step = next_step(replace(VIEW, seen=[seen], survives=True, kind="training"))
    assert step == SendStop("tg-1-1", "notice", 20, "resize", "resize")
