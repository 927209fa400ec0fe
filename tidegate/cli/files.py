"""Job files and operators' files: YAML in, wire models out. What is wrong is said with file, field and remedy.

Strict YAML: a key that stands twice is refused, and so are tags and anchors' tricks that only Python understands.
"""

import sys
from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import ValidationError

from tidegate.cli.exits import REJECTED, USAGE, Quit
from tidegate.wire.operator import OPERATOR_DOC, OperatorDoc
from tidegate.wire.spec import JobSpec

MAX_BYTES: Final = 4 << 20


class _Loader(yaml.SafeLoader):
    """YAML without aliases (a few lines of them unfold to gigabytes) and without double keys."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            event: Any = self.peek_event()  # type: ignore[no-untyped-call]
            raise yaml.constructor.ConstructorError(None, None, "aliases (*name) are not read", event.start_mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[object] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable) or key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key!r} stands twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep=deep)


def read_jobs(path: Path) -> list[JobSpec]:
    """The jobs of a file; `-` is standard input. Quit 65 when one is not valid."""
    found = []
    for number, document in enumerate(_documents(path), 1):
        try:
            found.append(JobSpec.model_validate(document))
        except ValidationError as error:
            raise Quit(REJECTED, _words(path, number, error)) from error
    return found


def read_operator_documents(paths: list[Path]) -> list[OperatorDoc]:
    """What stands in operators' files, in their order. A folder means its *.yaml and *.yml files by name."""
    found = []
    for path in (file for given in paths for file in _files(given)):
        for number, document in enumerate(_documents(path), 1):
            try:
                found.append(OPERATOR_DOC.validate_python(document))
            except ValidationError as error:
                raise Quit(REJECTED, _words(path, number, error)) from error
    return found


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    return sorted(file for file in path.iterdir() if file.suffix in {".yaml", ".yml"})


def _documents(path: Path) -> Iterator[Any]:
    text = _text(path)
    try:
        for document in yaml.load_all(text, Loader=_Loader):
            if document is not None:
                yield document
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
        raise Quit(REJECTED, f"{where}: {error.problem}; correct the YAML") from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise Quit(REJECTED, f"{path}: this is no YAML that can be read; correct it") from error


def _text(path: Path) -> str:
    try:
        raw = sys.stdin.buffer.read(MAX_BYTES + 1) if str(path) == "-" else _read(path)
        text = raw.decode()
    except OSError as error:
        raise Quit(
            USAGE, f"{path}: {error.strerror or 'cannot be read'}; name a file, or - for standard input"
        ) from error
    except UnicodeDecodeError as error:
        raise Quit(REJECTED, f"{path} is not UTF-8; save it as UTF-8") from error
    if len(raw) > MAX_BYTES:
        raise Quit(REJECTED, f"{path} is larger than {MAX_BYTES} bytes; split it")
    return text


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MAX_BYTES + 1)


def _words(path: Path, number: int, error: ValidationError) -> str:
    """One line per field that is wrong."""
    which = f"{path}" if number == 1 else f"{path} (document {number})"
    lines = []
    for one in error.errors(include_url=False, include_input=False):
        field = ".".join(str(part) for part in one["loc"] if not str(part).startswith(("function-", "tagged-union")))
        words = str(one["msg"]).removeprefix("Value error, ")
        if one["type"] == "extra_forbidden":
            words = "there is no such field; take it away or correct its name"
        lines.append(f"{which}: {field}: {words}" if field else f"{which}: {words}")
    return "\n".join(lines)
