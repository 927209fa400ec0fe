"""Where the embedded stack of a folder keeps things, for verbs that run beside it: `stack.json`, for its owner alone.

Written at each start and left there, for `check` and `recover` after it. It carries the database's password.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

NAME: Final = "stack.json"
_KEPT: Final = ("TIDEGATE_DATABASE_URL", "TIDEGATE_TEMPORAL_ADDRESS", "TIDEGATE_DATA_DIR")


class NoStackError(Exception):
    """No stack has ever run on this folder; the message says what to type."""


def write(data_dir: Path, environment: Mapping[str, str]) -> None:
    """Replace the file whole, readable by its owner alone from its first byte."""
    part = data_dir / f"{NAME}.part"
    part.unlink(missing_ok=True)
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump({name: environment[name] for name in _KEPT}, file)
    part.rename(data_dir / NAME)


def read(data_dir: Path) -> dict[str, str]:
    """The settings of the stack that ran here last."""
    path = data_dir.expanduser().resolve() / NAME
    try:
        found = json.loads(path.read_text())
        return {name: str(found[name]) for name in _KEPT}
    except FileNotFoundError:
        raise NoStackError(f"{path} does not exist; name the --data-dir that `tidegate up` was started with") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise NoStackError(f"{path} cannot be read; start `tidegate up --data-dir {data_dir}` once more") from error
