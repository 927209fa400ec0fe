"""What the histories of a workflow say: its chain of runs, its inputs, and what came in the same workflow task."""

from collections.abc import Sequence

from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client
from temporalio.converter import default as default_converter

from workflows.messages import AttemptRef

Run = Sequence[HistoryEvent]


async def runs(client: Client, workflow_id: str) -> list[Run]:
    """The histories of every run, from the first to the one that is open or ended last."""
    found: list[Run] = []
    run_id = (await client.get_workflow_handle(workflow_id).describe()).run_id or ""
    while run_id:
        history = await client.get_workflow_handle(workflow_id, run_id=run_id).fetch_history()
        found.insert(0, history.events)
        run_id = history.events[0].workflow_execution_started_event_attributes.continued_execution_run_id
    return found


async def ref_of(run: Run) -> AttemptRef:
    """The input of a run."""
    payloads = run[0].workflow_execution_started_event_attributes.input.payloads
    (ref,) = await default_converter().decode(payloads, [AttemptRef])
    assert isinstance(ref, AttemptRef)
    return ref


def turned(run: Run) -> bool:
    """Whether it ended by continuing as new."""
    return run[-1].HasField("workflow_execution_continued_as_new_event_attributes")


def signals_per_task(run: Run) -> list[int]:
    """How many signals each workflow task brought, in order."""
    counts: list[int] = []
    signals = 0
    for event in run:
        if event.HasField("workflow_execution_signaled_event_attributes"):
            signals += 1
        elif event.HasField("workflow_task_completed_event_attributes"):
            counts.append(signals)
            signals = 0
    return counts
