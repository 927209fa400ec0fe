"""`python -m soak`: a long soak, with its figures. Exit code 0 only if nothing was lost, doubled or leaked."""

import argparse
import shutil
import sys
from pathlib import Path

from soak.run import Plan, report, scratch, soak


def main(argv: list[str]) -> int:
    """Runs one soak."""
    parser = argparse.ArgumentParser(prog="soak", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="chooses jobs, victims and moments")
    parser.add_argument("--kills", type=int, default=300, help="how many processes are killed")
    parser.add_argument("--jobs", type=int, default=30, help="at least so many jobs; more while kills are owed")
    parser.add_argument("--in-flight", type=int, default=16, help="jobs in the gate at once")
    parser.add_argument("--folder", type=Path, help="keep everything here (default: a folder that goes when it passed)")
    given = parser.parse_args(argv)
    folder = given.folder or scratch()
    plan = Plan(given.seed, given.kills, given.jobs, given.in_flight)
    say(f"seed {plan.seed}, {plan.kills} kills, at most {plan.limit_s:.0f} s; logs in {folder / 'logs'}")
    outcome = soak(plan, folder, say)
    report(outcome, say)
    if outcome.verdict.passed and given.folder is None:
        shutil.rmtree(folder, ignore_errors=True)
    return 0 if outcome.verdict.passed else 1


def say(text: str) -> None:
    """To the terminal, at once."""
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
