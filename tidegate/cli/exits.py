"""Exit codes. A job's own code passes through `run --wait`; all of the tool's own are 64 or more, but for `diff`'s 1.

Codes 64 to 78 are those of sysexits.h; 124 is that of timeout(1) and 130 that of a shell after Ctrl-C.
"""

from typing import Final

from tidegate.archive.tar import ArchiveError
from tidegate.client.errors import (
    GATEWAY_STATUSES,
    ConfigError,
    ProblemError,
    ProtocolError,
    UnreachableError,
    UsageError,
    WaitTimeoutError,
)
from tidegate.wire.enums import JobState
from tidegate.wire.job import Job

USAGE: Final = 64
REJECTED: Final = 65
UNREACHABLE: Final = 69
"""Also for what is not installed: EX_UNAVAILABLE means both."""
DEFECT: Final = 70
CANNOT_WRITE: Final = 73
CONFIG: Final = 78
WAIT_OVER: Final = 124
CANCELLED: Final = 130
_TOO_MANY: Final = 429
_CLIENT_ERROR: Final = range(400, 500)
_MAX_CODE: Final = 255


class Quit(Exception):  # noqa: N818  (no error: the end of the program, with its code)
    """Ends the program with this code, and a line on standard error if there is one."""

    def __init__(self, code: int, message: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def code_of_job(job: Job) -> int:
    """The code of a job that has ended: its own; 1 when it failed without one (or with 0, as a stalled job may)."""
    if job.state is JobState.SUCCEEDED:
        return 0
    if job.state is JobState.CANCELLED:
        return CANCELLED
    if job.state is JobState.REJECTED:
        return REJECTED
    return job.exit_code if job.exit_code and 0 < job.exit_code <= _MAX_CODE else 1


def code_of_error(error: Exception) -> int:
    """The tool's own code for what went wrong."""
    if isinstance(error, ProblemError):
        if error.status in GATEWAY_STATUSES or error.status == _TOO_MANY:
            return UNREACHABLE
        return REJECTED if error.status in _CLIENT_ERROR else DEFECT
    table: tuple[tuple[type[Exception], int], ...] = (
        (Quit, getattr(error, "code", DEFECT)),
        (UnreachableError, UNREACHABLE),
        (WaitTimeoutError, WAIT_OVER),
        (ArchiveError, REJECTED),
        (ConfigError, CONFIG),
        (UsageError, USAGE),
        (ProtocolError, DEFECT),
    )
    return next((code for kind, code in table if isinstance(error, kind)), DEFECT)
