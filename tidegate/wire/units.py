"""Durations and quantities: strict parsers from text to integers, never through binary floats.

Durations are whole seconds (`90`, `90s`, `30m`, `4h`, `2d`). Quantities follow the grammar of Kubernetes (`500m`,
`1.5Gi`, `129e6`), and what it does not allow is refused: NaN, Infinity, underscores, signs, spaces, other digits
(CASES K8-02).
"""

import re
from decimal import ROUND_CEILING, Decimal
from typing import Annotated, Final

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

MAX_SECONDS: Final = 366 * 86_400 * 10
MAX_QUANTITY: Final = Decimal(2) ** 62
_DURATION: Final = re.compile(r"(?P<number>[0-9]{1,12})(?P<unit>[smhd]?)")
_SECONDS: Final = {"": 1, "s": 1, "m": 60, "h": 3_600, "d": 86_400}
_QUANTITY: Final = re.compile(
    r"(?P<number>[0-9]{1,30}(?:\.[0-9]{0,18})?|\.[0-9]{1,18})"
    r"(?:(?P<suffix>[KMGTPE]i|[numkMGTPE])|[eE](?P<exponent>[-+]?[0-9]{1,2}))?",
    re.ASCII,
)
_SUFFIX: Final = {
    "n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3"),
    "k": Decimal(10) ** 3, "M": Decimal(10) ** 6, "G": Decimal(10) ** 9,
    "T": Decimal(10) ** 12, "P": Decimal(10) ** 15, "E": Decimal(10) ** 18,
    "Ki": Decimal(2) ** 10, "Mi": Decimal(2) ** 20, "Gi": Decimal(2) ** 30,
    "Ti": Decimal(2) ** 40, "Pi": Decimal(2) ** 50, "Ei": Decimal(2) ** 60,
}  # fmt: skip


def parse_duration(value: object) -> int:
    """Whole seconds of `90`, `"90s"`, `"30m"`, `"4h"` or `"2d"`. ValueError says what is allowed."""
    if isinstance(value, int) and not isinstance(value, bool):
        seconds = value
    elif isinstance(value, str) and (match := _DURATION.fullmatch(value)):
        seconds = int(match["number"]) * _SECONDS[match["unit"]]
    else:
        raise ValueError("a duration is whole seconds or a number with s, m, h or d, for example 90s, 30m, 4h, 2d")
    if not 0 <= seconds <= MAX_SECONDS:
        raise ValueError(f"a duration lies between 0 and {MAX_SECONDS} seconds (ten years)")
    return seconds


def format_duration(seconds: int) -> str:
    """The shortest exact text: 5400 is `90m`."""
    for unit in ("d", "h", "m"):
        if seconds and seconds % _SECONDS[unit] == 0:
            return f"{seconds // _SECONDS[unit]}{unit}"
    return f"{seconds}s"


def parse_quantity(text: str) -> Decimal:
    """The exact value of a Kubernetes quantity. `1E` is 10^18, `1E3` is 1000, as Kubernetes reads them."""
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise ValueError("a quantity is a number with an optional suffix, for example 500m, 2, 16Gi, 129e6")
    number = Decimal(match["number"])
    if match["suffix"]:
        number *= _SUFFIX[match["suffix"]]
    elif match["exponent"]:
        number = number.scaleb(int(match["exponent"]))
    if number > MAX_QUANTITY:
        raise ValueError("a quantity is at most 2^62")
    return number


def _scaled(value: object, scale: int, what: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        number = Decimal(value)
        if number < 0 or number * scale > MAX_QUANTITY:
            raise ValueError(f"{what} lies between 0 and 2^62")
    elif isinstance(value, str):
        number = parse_quantity(value)
    else:
        example = "16Gi" if scale == 1 else "1.5"
        # ValueError, since pydantic turns only that into a message about the field.
        raise ValueError(f"{what} is an integer or a quantity in quotes, for example {example}")  # noqa: TRY004
    return int((number * scale).to_integral_value(rounding=ROUND_CEILING))


def parse_bytes(value: object) -> int:
    """Bytes, rounded up."""
    return _scaled(value, 1, "memory")


def parse_milli(value: object) -> int:
    """Thousandths of a CPU or a card, rounded up: `"500m"` is 500, `2` is 2000."""
    if isinstance(value, float):
        # YAML and JSON give 0.5 as a float; its shortest text is what the user wrote.
        value = repr(value) if 0 <= value < 1e15 else "NaN"  # noqa: PLR2004  (NaN and Infinity are refused as text)
    return _scaled(value, 1000, "an amount")


def format_bytes(amount: int) -> str:
    """The largest binary suffix that divides it exactly."""
    for suffix in ("Ti", "Gi", "Mi", "Ki"):
        unit = int(_SUFFIX[suffix])
        if amount and amount % unit == 0:
            return f"{amount // unit}{suffix}"
    return str(amount)


def format_milli(amount: int) -> str:
    """`1500` is `1.5`."""
    whole, rest = divmod(amount, 1000)
    return f"{whole}.{rest:03d}".rstrip("0") if rest else str(whole)


def _either(pattern: str, kind: str = "integer") -> WithJsonSchema:
    return WithJsonSchema({"anyOf": [{"type": kind, "minimum": 0}, {"type": "string", "pattern": pattern}]})


_QUANTITY_PATTERN: Final = r"^([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][-+]?[0-9]+)?$"

Seconds = Annotated[
    int,
    BeforeValidator(parse_duration),
    PlainSerializer(format_duration, return_type=str),
    _either(r"^[0-9]+[smhd]?$"),
]
"""Whole seconds from an integer or text with s, m, h or d; written as text."""

Bytes = Annotated[
    int, BeforeValidator(parse_bytes), PlainSerializer(format_bytes, return_type=str), _either(_QUANTITY_PATTERN)
]
"""Bytes from an integer or a quantity; written as a quantity."""

Milli = Annotated[
    int,
    BeforeValidator(parse_milli),
    PlainSerializer(format_milli, return_type=str),
    _either(_QUANTITY_PATTERN, "number"),
]
"""Thousandths of a card or CPU from a number or a quantity; written as a decimal text."""
