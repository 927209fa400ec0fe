"""RFC 9457 problem documents: one shape for every error the API gives."""

from pydantic import Field

from tidegate.wire.base import Loose

PROBLEM_TYPE = "https://tidegate.dev/problems/"


class FieldProblem(Loose):
    """One field that is wrong and what to do about it."""

    field: str
    detail: str
    remedy: str = ""


class Problem(Loose):
    """`type` ends in a stable word (`unknown-field`, `key-conflict`); `field` is a dotted path into the body."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str = ""
    field: str = ""
    remedy: str = ""
    instance: str = ""
    errors: tuple[FieldProblem, ...] = Field(default=())
