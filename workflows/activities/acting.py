"""What every activity that acts outside has in common: heartbeats while a blocking call lasts, and errors of the port
turned into what the workflow may do next. No error of a backend ever becomes a change of state here.
"""

import contextvars
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from temporalio import activity

from backends.errors import BackendError, Misconfigured, NoCapacity, OutcomeUnknown, Refused, TenantNotServed, Throttled
from workflows.messages import AttemptView, Done, Refusal

HEARTBEAT_EVERY_S: Final = 2.0
RETRY_S: Final = 2.0
REST_S: Final = {"NoCapacity": 60, "Misconfigured": 300, "Refused": 30}


@contextmanager
def heartbeats() -> Iterator[None]:
    """Beat for the running activity from a thread of its own while the block lasts."""
    done = threading.Event()
    context = contextvars.copy_context()

    def beat() -> None:
        while not done.wait(HEARTBEAT_EVERY_S):
            context.run(activity.heartbeat)

    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    if activity.in_activity():
        thread.start()
    try:
        yield
    finally:
        done.set()


def outcome(backend: str, error: BackendError, view: AttemptView | None) -> Done:
    """What the workflow hears of an error: a refusal to decide about, or that it may ask again later."""
    if isinstance(error, Refused):
        refusal = Refusal(
            backend, error.reason, str(error), permanent=error.permanent, no_room=isinstance(error, NoCapacity)
        )
        return Done(view=view, refusal=refusal)
    if isinstance(error, Misconfigured):
        tenant = isinstance(error, TenantNotServed)
        refusal = Refusal(backend, "Misconfigured", str(error), misconfigured=True, tenant=tenant)
        return Done(view=view, refusal=refusal)
    if isinstance(error, Throttled):
        return Done(view=view, retry_after_s=max(RETRY_S, error.retry_after_s), problem=str(error))
    # Unreachable: nothing was asked. OutcomeUnknown: the same key again, which finds what the lost answer made.
    unknown = isinstance(error, OutcomeUnknown)
    return Done(view=view, retry_after_s=0.5 if unknown else RETRY_S, problem=str(error))


def rest(error: BackendError) -> tuple[int, str] | None:
    """For how long the refused pools get nothing, and by which word; None where the pool is not to blame."""
    if isinstance(error, NoCapacity):
        return REST_S["NoCapacity"], error.reason
    if isinstance(error, TenantNotServed):
        return None  # the tenants that it serves must not wait for the one that it does not
    if isinstance(error, Misconfigured):
        return REST_S["Misconfigured"], "Misconfigured"
    if isinstance(error, Refused) and not error.permanent:
        return REST_S["Refused"], error.reason
    return None
