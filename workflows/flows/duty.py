"""A standing loop (arbiter, relay, follower, reconciler, accrual) as a workflow: one long activity, then a new turn.

Temporal keeps at most one open run per duty, which is all the leader election there is; the arbiter's epoch in the
ledger fences a run that Temporal believes dead and that is not. Decides nothing.
"""

from datetime import timedelta
from typing import Final

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from workflows.messages import Duty

TURN_S: Final = 600
GONE: Final = "gone"
_PAUSE_S: Final = 2


@workflow.defn(name="duty")
class DutyWorkflow:
    """Runs `duty_<name>` for at most TURN_S, for ever; ends only when the activity answers that its subject is gone."""

    @workflow.run
    async def run(self, duty: Duty) -> str:
        """One turn."""
        try:
            answer: str = await workflow.execute_activity(
                f"duty_{duty.name}",
                duty,
                result_type=str,
                start_to_close_timeout=timedelta(seconds=TURN_S + 60),
                # A worker that died is noticed so soon; its successor takes a new epoch and goes on. Beats are sent
                # every BEATS_S (workflows.worker), so that three may be late before the living one is taken for dead.
                heartbeat_timeout=timedelta(seconds=8),
                retry_policy=RetryPolicy(
                    initial_interval=timedelta(milliseconds=500),
                    backoff_coefficient=1.5,
                    maximum_interval=timedelta(seconds=10),
                    maximum_attempts=100,  # then a new turn, with a short history
                ),
            )
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            answer = ""
            await workflow.sleep(_PAUSE_S)
        if answer != GONE:
            workflow.continue_as_new(Duty(duty.name, duty.subject, duty.turn + 1))
        return GONE
