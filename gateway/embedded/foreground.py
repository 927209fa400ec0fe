"""`tidegate up`: the embedded stack in the foreground until Ctrl-C or SIGTERM."""

import signal
import sys
import threading
from pathlib import Path

import yaml

from gateway.embedded.processes import ProcessFailedError
from gateway.embedded.stack import Stack, running
from tidegate.client import Client
from tidegate.wire.operator import OPERATOR_DOC

LOOK_EVERY_S = 0.5


def run_in_foreground(data_dir: Path, port: int, apply: Path | None) -> int:
    """Exit code 0 after a wished end, 1 when a part of the stack ended by itself (its log's end is printed)."""
    leave = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: leave.set())
    try:
        with running(data_dir, port=port) as stack:
            if apply:
                with Client(stack.url, token=stack.token) as operator:
                    documents = yaml.safe_load_all(apply.read_text())
                    operator.apply([OPERATOR_DOC.validate_python(document) for document in documents])
            sys.stdout.write(greeting(stack))
            sys.stdout.flush()
            while not leave.wait(LOOK_EVERY_S):
                for child in stack.children.values():
                    child.check()
    except ProcessFailedError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def greeting(stack: Stack) -> str:
    """What to type next. The token itself stays in its file."""
    return (
        f"Tidegate is up at {stack.url}\n"
        f"  export TIDEGATE_URL={stack.url} TIDEGATE_TOKEN_FILE={stack.token_file}\n"
        f"  tidegate list\n"
        f"  tidegate check --data-dir {stack.data_dir}   # do the books balance?\n"
        "Ctrl-C stops it; what it holds stays and is found again.\n"
    )
