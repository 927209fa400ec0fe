"""Builds the one zipapp that carries agent and in-job helper to images that are not ours. The same bytes each time.

It holds `tidegate.agent`, `tidegate.job` and what unpacks archives, and an empty package file in place of the client's.
"""

from __future__ import annotations

import stat
import sys
import zipfile
from pathlib import Path
from typing import List

#: Relative to the package; packing archives is the client's and needs more than the standard library.
PATTERNS = ("agent/*.py", "job/*.py", "archive/__init__.py", "archive/tar.py", "archive/unpack.py")
_SHEBANG = b"#!/usr/bin/env python3\n"
_EPOCH = (1980, 1, 1, 0, 0, 0)
_MAIN = "from tidegate.agent.main import main\n\nraise SystemExit(main())\n"
_PACKAGE = '"""Tidegate\'s in-job helper and node agent."""\n'


def build_zipapp(target: Path) -> Path:
    """Write the zipapp to `target` (executable) and return it."""
    source = Path(__file__).absolute().parents[1]
    files = {"__main__.py": _MAIN, "tidegate/__init__.py": _PACKAGE}
    for path in sources():
        files[f"tidegate/{path.relative_to(source).as_posix()}"] = path.read_text(encoding="utf-8")
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as out:
        out.write(_SHEBANG)
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
            for name in sorted(files):
                entry = zipfile.ZipInfo(name, _EPOCH)
                entry.external_attr = 0o644 << 16
                entry.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(entry, files[name])
    target.chmod(target.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    return target


def sources() -> List[Path]:
    """The modules that go into it. Each must be standard library only and Python 3.9."""
    source = Path(__file__).absolute().parents[1]
    return sorted(path for pattern in PATTERNS for path in source.glob(pattern))


def main(argv: List[str]) -> int:
    """`python -m tidegate.agent.build TARGET`."""
    sys.stdout.write(f"{build_zipapp(Path(argv[1]))}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv))
