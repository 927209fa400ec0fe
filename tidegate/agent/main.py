"""The agent's composition: reads its arguments, starts its parts, ends them in order."""

from __future__ import annotations

import argparse
import logging
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import List, Optional

from tidegate.agent import folder
from tidegate.agent.heartbeat import Gangs
from tidegate.agent.members import Members
from tidegate.agent.metadata import MetadataWatcher
from tidegate.agent.server import ControlServer

EXIT_USAGE = 64
EXIT_BUSY = 75


def main(argv: Optional[List[str]] = None) -> int:
    """Run until SIGTERM or SIGINT. 75: another agent has this folder."""
    arguments = _parser().parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s", stream=sys.stderr)
    root: Path = arguments.dir.absolute()
    folder.make(root, 0o711)
    if folder.try_lock(root / "agent.lock") is None:
        sys.stderr.write(f"--dir: another agent works in {root}; give this one a folder of its own\n")
        return EXIT_BUSY
    gangs = Gangs()
    members = Members(root, arguments.instance, on_started=gangs.joined)
    gangs.bind(members)
    members.recover()
    path: Path = arguments.socket or root / "agent.sock"
    try:
        server = ControlServer(path, members)
    except OSError as error:
        sys.stderr.write(f"--socket: cannot listen at {path}: {error}\n")
        return EXIT_USAGE
    threading.Thread(target=server.serve_forever, args=(0.1,), name="control", daemon=True).start()
    watcher = None
    if arguments.metadata:
        watcher = MetadataWatcher(arguments.metadata, members, poll_s=arguments.metadata_poll_s)
        watcher.start()
    done = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: done.set())
    sys.stdout.write(f"ready {path}\n")
    sys.stdout.flush()
    while not done.wait(3600):  # a bounded wait lets handlers run on every platform
        continue
    if watcher is not None:
        watcher.close()
    server.shutdown()
    gangs.close()
    members.close()
    server.server_close()
    path.unlink(missing_ok=True)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tidegate-agent", description="Keeps the members of jobs on this instance.")
    parser.add_argument("--dir", type=Path, required=True, help="folder of this agent: socket, members, status")
    parser.add_argument("--socket", type=Path, help="control socket (default: DIR/agent.sock)")
    parser.add_argument("--instance", default=socket.gethostname(), help="name of this instance in answers")
    parser.add_argument("--metadata", help="URL of the instance's metadata service, for interruption notices")
    parser.add_argument("--metadata-poll-s", type=float, default=1.0, help="seconds between two looks")
    return parser
