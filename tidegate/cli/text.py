"""Foreign text made safe for a terminal: no control sequences, no turned directions. Never changes what is piped on."""

import re
from typing import Final

# ECMA-48: CSI, then the string types (OSC, DCS, SOS, PM, APC) to their end, then other escapes.
_SEQUENCES: Final = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[ -/]*[0-~]?"
)
_CONTROLS: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u061c\u202a-\u202e\u2066-\u2069]")


def plain(text: str) -> str:
    """Many lines, for output of jobs. A lone carriage return (progress bars) becomes a new line."""
    return _CONTROLS.sub("", _SEQUENCES.sub("", text.replace("\r\n", "\n").replace("\r", "\n")))


def one_line(text: str) -> str:
    """For names and messages in tables."""
    return " ".join(plain(text).split())
