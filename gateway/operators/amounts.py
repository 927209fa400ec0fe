"""Amounts of a quota: what operators write, the integers of the ledger and the texts that views show."""

from decimal import Decimal

from tidegate.wire.enums import BudgetUnit, Resource
from tidegate.wire.governance import BudgetAmount
from tidegate.wire.operator import Amount
from tidegate.wire.units import format_bytes, format_milli, parse_bytes, parse_milli

_MAX_JOBS = 10**9
_MAX_BUDGET = 10**18
_PER_UNIT = {BudgetUnit.GPU_HOURS: 3_600_000, BudgetUnit.DOLLARS: 1_000_000}
_DECIMALS = {BudgetUnit.GPU_HOURS: 3, BudgetUnit.DOLLARS: 6}
_MAX_TEXT = 40
LEDGER_UNITS = {BudgetUnit.GPU_HOURS: "gpu_ms", BudgetUnit.DOLLARS: "micro_usd"}
WIRE_UNITS = {ledger: unit for unit, ledger in LEDGER_UNITS.items()}


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


def parse_budget(amount: BudgetAmount, unit: BudgetUnit) -> int:
    """GPU-milliseconds or micro-dollars, as the ledger counts them. ValueError says what is allowed."""
    text = str(amount)
    try:
        micro = Decimal(text) * 10**6 if len(text) <= _MAX_TEXT else Decimal("NaN")
        found = micro * _PER_UNIT[unit] / 10**6
    except ArithmeticError as error:
        raise ValueError("write a number, for example 250.5") from error
    whole = found.is_finite() and micro == micro.to_integral_value() and found == found.to_integral_value()
    if not whole or not 0 <= found <= _MAX_BUDGET:
        raise ValueError(f"a number from 0 up with at most {_DECIMALS[unit]} decimals")
    return int(found)


def show_budget(amount: int, unit: BudgetUnit) -> str:
    """The decimal that `parse_budget` reads back to the same integer; what was used in odd milliseconds is cut."""
    whole, rest = divmod(abs(amount), _PER_UNIT[unit])
    decimals = f"{rest * 10**6 // _PER_UNIT[unit]:06d}".rstrip("0")
    return f"{'-' if amount < 0 else ''}{whole}" + (f".{decimals}" if decimals else "")


def show_signed(amount: int, resource: Resource) -> str:
    """As `show`, for the differences that grants hold."""
    return f"-{show(-amount, resource)}" if amount < 0 else show(amount, resource)
