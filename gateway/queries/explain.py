"""Why a job is where it is: its last Wait, its decisions and words. Recomputes nothing; the arbiter wrote it all."""

from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import Session
from sqlmodel import col

from gateway.ledger.tables.control import DecisionRow
from gateway.ledger.tables.work import JobRow
from gateway.queries import jobs
from policies.reasons import verdict
from policies.vocabulary import Pending, Reason
from tidegate.wire import job as wire
from tidegate.wire.enums import JobState

_DECISIONS_SHOWN = 50


def decisions(session: Session, job_id: UUID) -> tuple[wire.Decision, ...]:
    """The newest decisions about a job, newest first."""
    query = (
        select(DecisionRow)
        .where(col(DecisionRow.job_id) == job_id)
        .order_by(col(DecisionRow.id).desc())
        .limit(_DECISIONS_SHOWN)
    )
    return tuple(
        wire.Decision(
            id=row.id or 0,
            at=row.at,
            kind=row.kind,
            token=row.token,
            data=row.data,
            policy=row.policy,
            applied=row.applied,
        )
        for row in session.execute(query).scalars()
    )


def _why(row: JobRow) -> wire.Why | None:
    if row.state not in {JobState.QUEUED, JobState.ADMITTED, JobState.RUNNING}:
        return None
    if row.state == JobState.QUEUED and row.want_hold:
        return wire.Why(token=Pending.ON_HOLD, remedy="unhold the job")
    stored = jobs.why(row.pending)
    if stored is None and row.state == JobState.QUEUED:
        return wire.Why(token=Pending.PENDING_EVALUATION, remedy="nothing: the arbiter looks at it in its next cycle")
    return stored


def _words(row: JobRow, why: wire.Why | None) -> str:
    if row.reason and row.reason in {reason.value for reason in Reason}:
        words = verdict(Reason(row.reason)).words
        return f"{words}: {row.message}" if row.message and row.message != words else words
    if row.message:
        return row.message
    if why is not None:
        # What waits of a running job is a size that was asked for, or indexes of an array.
        runs = "runs, and more of it " if row.state == JobState.RUNNING else ""
        return f"{runs}waits: {why.token}" + (f"; {why.remedy}" if why.remedy else "")
    return f"is {row.state.lower()}"


def explanation(session: Session, row: JobRow) -> wire.Explanation:
    """Token, numbers, remedy, blocker, estimated start and the decisions behind them."""
    why = _why(row)
    return wire.Explanation(
        job=str(row.id),
        state=JobState(row.state),
        why=why,
        words=_words(row, why),
        decisions=decisions(session, row.id),
    )
