"""The workflow of one attempt: read the row, decide, do one step, wait for a nudge; until the attempt is settled.

It may be started late, twice, or in the middle of an attempt's life: the row says where it stands. It draws nothing
at random and makes no ids. A failing step is tried again for ever, ever more slowly: an attempt is never abandoned.
"""

from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import FailureError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from workflows.decide import after_absence, after_refusal, next_step
    from workflows.messages import NUDGE, AttemptRef, AttemptView, Done, Settled
    from workflows.steps import (
        AbortAll,
        Confirm,
        FinishResize,
        Launch,
        Leave,
        Mark,
        Prepare,
        SendCheckpoint,
        SendResize,
        SendStop,
        Settle,
        Start,
        Step,
        Wait,
    )

_SLOWEST_S: Final = 60
_SHORTEST_S: Final = 0.1
_LOCAL: Final[dict[str, Any]] = {
    "start_to_close_timeout": timedelta(seconds=10),
    "schedule_to_close_timeout": timedelta(seconds=30),
    "retry_policy": RetryPolicy(initial_interval=timedelta(milliseconds=200), maximum_attempts=3),
}
_OUTSIDE: Final[dict[str, Any]] = {
    "start_to_close_timeout": timedelta(seconds=180),
    "heartbeat_timeout": timedelta(seconds=10),  # so soon is a step done again that a worker took to its grave
    "retry_policy": RetryPolicy(initial_interval=timedelta(milliseconds=500), maximum_attempts=3),
}
_ACTIVITIES: Final[dict[type, str]] = {
    Launch: "launch",
    Prepare: "prepare",
    Start: "start",
    SendStop: "send_stop",
    SendCheckpoint: "send_checkpoint",
    SendResize: "send_resize",
    FinishResize: "finish_resize",
    Confirm: "confirm",
    AbortAll: "abort_all",
}


@workflow.defn(name="attempt")
class AttemptWorkflow:
    """See the module. Returns the state in which it found or left the attempt."""

    def __init__(self) -> None:
        self._nudges = 0
        self._start_asked_ms: int | None = None
        self._launching_ms: int | None = None
        self._failures = 0

    @workflow.signal(name=NUDGE)
    def nudge(self) -> None:
        """Something may have changed: look at the row."""
        self._nudges += 1

    @workflow.run
    async def run(self, ref: AttemptRef) -> str:
        """Follow the attempt to its end."""
        self._start_asked_ms, self._failures = ref.start_asked_ms, ref.failures
        self._launching_ms = ref.launching_ms
        view: AttemptView | None = None
        before: Step | None = None
        heard = 0
        while True:
            # Here, where every way leads by: wishes that come faster than they are carried out never let it wait.
            await self._turn(ref)
            try:
                if view is None:
                    # Counted before the row is read, and only then: a nudge that comes while a step runs may be about
                    # a change that the step's own view has missed, and must end the next wait at once.
                    heard = self._nudges
                    view = await self._load(ref.attempt_id)
                if view is None:
                    return "unknown"
                step = next_step(self._with_memory(view))
                if isinstance(step, Leave):
                    return view.state
                if isinstance(step, Settle):
                    return await self._settle(step)
                if isinstance(step, Wait):
                    self._failures, before, view = 0, None, None
                    self._launching_ms = None
                    await self._pause(step.wake_after_s, heard)
                    continue
                # The same step again means that it changed nothing: each repetition waits longer.
                repeated, before = step == before, step
                done = await self._do(step, view)
            except FailureError as error:  # a local activity's own error comes without ActivityError around it
                if is_cancelled_exception(error):
                    raise
                repeated, done = True, Done(problem="the step failed")
            if done.settled:
                return "settled"
            view = done.view
            if repeated or done.retry_after_s > 0:
                view = None
                await self._slow_down(done.retry_after_s, heard)

    async def _load(self, attempt_id: str) -> AttemptView | None:
        loaded: AttemptView | None = await workflow.execute_local_activity(
            "load_attempt", attempt_id, result_type=AttemptView, **_LOCAL
        )
        return loaded

    def _with_memory(self, view: AttemptView) -> AttemptView:
        if view.dark:
            self._start_asked_ms = view.now_ms  # the wait in a backend runs only while it answers
        asked_ms = self._start_asked_ms if view.start_asked_ms is None else view.start_asked_ms
        return replace(view, start_asked_ms=asked_ms, launching_ms=self._launching_ms)

    async def _settle(self, step: Settle) -> str:
        # Local, as all that is one transaction: it may be repeated, and a task queue would cost more than it does.
        settled: Settled = await workflow.execute_local_activity("settle", step.end, result_type=Settled, **_LOCAL)
        return settled.attempt_state

    async def _do(self, step: Step, view: AttemptView) -> Done:
        if isinstance(step, Mark):
            marked: Done = await workflow.execute_local_activity("mark_attempt", step, result_type=Done, **_LOCAL)
            return marked
        if isinstance(step, Launch | Start):
            self._start_asked_ms = view.now_ms
        if isinstance(step, Launch | Start | Prepare) and (self._launching_ms is None or view.dark):
            self._launching_ms = view.now_ms  # in the dark no time for it runs
        done: Done = await workflow.execute_activity(_ACTIVITIES[type(step)], step, result_type=Done, **_OUTSIDE)
        after: Step | None = None
        if done.refusal is not None and done.view is not None:
            after = after_refusal(done.view, done.refusal)
        elif done.absent and done.view is not None:
            after = after_absence(done.view)
        if after is None or isinstance(after, Leave):
            return done
        answered: Done = await workflow.execute_activity(_ACTIVITIES[type(after)], after, result_type=Done, **_OUTSIDE)
        return answered

    async def _slow_down(self, at_least_s: float, heard: int) -> None:
        self._failures = min(self._failures + 1, 10)
        await self._pause(max(at_least_s, min(_SLOWEST_S, 0.5 * 2**self._failures)), heard, deaf_s=1.0)

    async def _pause(self, seconds: float, heard: int, deaf_s: float = 0.0) -> None:
        """Until a nudge that came after `heard`, or the timer. A burst of nudges wakes a failing step once a second.

        No delay is 0: that would start no timer, and a later jitter of the delay would then be one step more than the
        history has (TP-01).
        """
        if deaf_s:
            await workflow.sleep(max(_SHORTEST_S, min(deaf_s, seconds)))
        try:
            await workflow.wait_condition(
                lambda: self._nudges != heard, timeout=timedelta(seconds=max(_SHORTEST_S, seconds - deaf_s))
            )
        except TimeoutError:
            return

    async def _turn(self, ref: AttemptRef) -> None:
        """Continue as new while the history is short. The new run reads the row, so no nudge is lost by the turn."""
        info = workflow.info()
        if info.get_current_history_length() < ref.max_events and not info.is_continue_as_new_suggested():
            return
        await workflow.wait_condition(workflow.all_handlers_finished)
        workflow.continue_as_new(
            replace(
                ref,
                turn=ref.turn + 1,
                start_asked_ms=self._start_asked_ms,
                launching_ms=self._launching_ms,
                failures=self._failures,
            )
        )
