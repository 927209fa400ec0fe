"""What the soak's jobs run: work that keeps its own record, so that nobody has to believe the gate.

One file of lines per (job, rank or index). Two locks are held while a member works: its rank's own, and its attempt's,
which all members of the attempt share. A rank that is held twice, or a member of another attempt at work, is written
down as an overlap. Environment: RECORDS (folder), MODE, STEPS, STEP_MS, CODE; for MODE `told` and `train` also TOLD, a
name: work ends once RECORDS/<TOLD>.<attempt, or i and index>.go is there, with the code in it. Standard library and our
helper.
"""

import fcntl
import glob
import json
import os
import sys
import time
from typing import Any

RECORDS = os.environ["RECORDS"]
MODE = os.environ.get("MODE", "short")
STEPS = int(os.environ.get("STEPS", "10"))
STEP_S = int(os.environ.get("STEP_MS", "50")) / 1000
CODE = int(os.environ.get("CODE", "0"))
SAVE_EVERY = 10
INDEX = os.environ.get("TIDEGATE_ARRAY_INDEX")
ATTEMPT = os.environ["TIDEGATE_ATTEMPT"]
WHOLE = os.environ["TIDEGATE_JOB_ID"] + (f".i{INDEX}" if INDEX else "")  # what must not be at work twice
PLACE = WHOLE if INDEX else f"{WHOLE}.r{os.environ['TIDEGATE_NODE_RANK']}"


def note(event: str, **more: Any) -> None:
    """One line, whole or not there: shorter than a page, appended by one write, and on disk before we go on."""
    line = {"at": time.time(), "event": event, "pid": os.getpid(), "attempt": ATTEMPT, **more}
    file = os.open(os.path.join(RECORDS, PLACE + ".jsonl"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(file, json.dumps(line).encode() + b"\n")
    os.close(file)


def hold() -> tuple[int, int]:
    """The locks of this rank and of this attempt. They go with the process, however that ends."""
    rank = open_lock(PLACE + ".lock")
    if not taken(rank, fcntl.LOCK_EX):
        note("overlap", how="the same rank twice")
    mine = open_lock(f"{WHOLE}.a{ATTEMPT}.lock")
    fcntl.flock(mine, fcntl.LOCK_SH)
    for path in glob.glob(os.path.join(RECORDS, WHOLE + ".a*.lock")):
        if not path.endswith(f".a{ATTEMPT}.lock"):
            other = open_lock(os.path.basename(path))
            if not taken(other, fcntl.LOCK_EX):
                note("overlap", how="beside " + os.path.basename(path))
            os.close(other)
    return rank, mine


def open_lock(name: str) -> int:
    """A file of the records, as a lock."""
    return os.open(os.path.join(RECORDS, name), os.O_RDWR | os.O_CREAT, 0o644)


def taken(lock: int, how: int) -> bool:
    """Try to lock; False when somebody else holds it."""
    try:
        fcntl.flock(lock, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def failed_before() -> bool:
    """Whether a member of this place has ended by itself already."""
    with open(os.path.join(RECORDS, PLACE + ".jsonl")) as lines:
        return any(json.loads(line)["event"] == "stop" for line in lines)


def told() -> str:
    """The exit code that somebody wants of this very attempt by now, or nothing."""
    path = os.path.join(RECORDS, os.environ.get("TOLD", "-") + "." + (f"i{INDEX}" if INDEX else ATTEMPT) + ".go")
    try:
        with open(path) as file:
            return file.read().strip()
    except FileNotFoundError:
        return ""


def steps(job: Any, first: int) -> bool:
    """Work with saves; True when told to leave before the end."""
    store = job.checkpoints() if job.context().checkpoint_url else None
    for step in range(first, STEPS):
        time.sleep(STEP_S)
        job.report(step)
        stop = job.should_stop(step)
        due = job.should_save(step) or (step + 1) % SAVE_EVERY == 0
        if store and (stop or due):
            store.save(step, {"state.json": json.dumps({"step": step}).encode()})
            store.prune(keep=2)
        if stop and step < STEPS - 1:
            return True
        if told():
            break
    return False


def train() -> None:
    """From the newest checkpoint to the end, or until told to leave."""
    try:
        from tidegate import job
    except ModuleNotFoundError:
        sys.path.append(os.environ.get("TIDEGATE_HELPER", ""))
        from tidegate import job
    found = job.checkpoints().resume()
    first = found.step + 1 if found else 0
    note("from", step=first)
    if steps(job, first):
        note("stop", code=75)
        job.exit_saved()
    job.finish()
    note("stop", code=0)


def main() -> int:
    """One member's life; its exit code."""
    locks = hold()
    note("start")
    if MODE == "train":
        train()
        return 0
    code = CODE
    if MODE == "told":
        while not told():
            time.sleep(STEP_S)
        code = int(told())
    else:
        time.sleep(STEPS * STEP_S)
    if MODE == "flaky":
        code = 0 if failed_before() else 3
    note("stop", code=code)
    for lock in locks:
        os.close(lock)
    return code


if __name__ == "__main__":
    sys.exit(main())
