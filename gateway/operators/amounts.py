"""Amounts of a quota: what operators write, the integers of the ledger and the texts that views show."""

from tidegate.wire.enums import Resource
from tidegate.wire.operator import Amount
from tidegate.wire.units import format_bytes, format_milli, parse_bytes, parse_milli

_MAX_JOBS = 10**9


def parse(amount: Amount, resource: Resource) -> int:
    """Milli-GPU, milli-CPU, bytes or jobs. ValueError says what is allowed."""
    if resource is Resource.MEMORY:
        return parse_bytes(amount)
    milli = parse_milli(amount)
    if resource is not Resource.JOBS:
        return milli
    jobs, rest = divmod(milli, 1000)
    if rest or jobs > _MAX_JOBS:
        raise ValueError("a number of jobs is a whole number up to 10^9")
    return jobs


def show(amount: int, resource: Resource) -> str:
    """The shortest text that `parse` reads back to the same integer."""
    if resource is Resource.MEMORY:
        return format_bytes(amount)
    return str(amount) if resource is Resource.JOBS else format_milli(amount)


def show_signed(amount: int, resource: Resource) -> str:
    """As `show`, for the differences that grants hold."""
    return f"-{show(-amount, resource)}" if amount < 0 else show(amount, resource)
