"""What can go wrong for a caller, typed by what to do next. Never holds a token, a header or a request body."""

from http import HTTPStatus
from typing import Final

from tidegate.wire.problem import PROBLEM_TYPE, FieldProblem, Problem

GATEWAY_STATUSES: Final = frozenset({502, 503, 504})


class TidegateError(Exception):
    """Base of all that this package raises on purpose."""


class ConfigError(TidegateError):
    """URL or token are missing or unusable; the text says where to set them. Nothing was sent."""


class UsageError(TidegateError, ValueError):
    """A call that can never be right; the text names the argument. Nothing was sent."""


class UnreachableError(TidegateError):
    """No answer, after all tries. The act may have happened: the same key tells, so do the same call again."""


class ProtocolError(TidegateError):
    """Something answered that is no Tidegate, or one that this client does not understand."""


class WaitTimeoutError(TidegateError, TimeoutError):
    """The bounded wait is over; the job goes on."""


class ProblemError(TidegateError):
    """The server refused, as an RFC 9457 problem. `slug` is the stable word at the end of `type`."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.status, problem.type)
        self.status: int = problem.status
        self.type: str = problem.type
        self.title: str = problem.title
        self.detail: str = problem.detail
        self.field: str = problem.field
        self.remedy: str = problem.remedy
        self.errors: tuple[FieldProblem, ...] = problem.errors

    @property
    def slug(self) -> str:
        """For example `key-conflict`; empty where the answer was no problem document of ours."""
        return self.type.removeprefix(PROBLEM_TYPE) if self.type.startswith(PROBLEM_TYPE) else ""

    def __str__(self) -> str:
        where = f"{self.field}: " if self.field else ""
        remedy = f"; {self.remedy}" if self.remedy else ""
        return f"{where}{self.detail or self.title}{remedy} ({self.status})"


def problem_of(status: int, media_type: str, body: bytes) -> ProblemError:
    """The error in an answer; also for proxies that answer something of their own."""
    if media_type.partition(";")[0].strip() in {"application/problem+json", "application/json"}:
        try:
            return ProblemError(Problem.model_validate_json(body).model_copy(update={"status": status}))
        except ValueError:
            pass
    try:
        title = HTTPStatus(status).phrase
    except ValueError:
        title = "Unknown status"
    return ProblemError(Problem(title=title, status=status))
