"""docs/CLI.md says what the command line does."""

import re
from pathlib import Path

from gateway import verbs
from tidegate.cli import exits, keys, server_verbs
from tidegate.cli.main import build

TEXT = (Path(__file__).parents[3] / "docs" / "CLI.md").read_text()


def test_every_exit_code_of_the_tool_is_documented() -> None:
    documented = {int(code) for code in re.findall(r"^\| (\d+) \|", TEXT, re.MULTILINE)}
    ours = {
        value for name, value in vars(exits).items() if name.isupper() and name[0] != "_" and isinstance(value, int)
    }
    assert documented == ours


def test_every_flag_and_verb_that_is_named_exists() -> None:
    import typer

    group = typer.main.get_group(build())
    server = typer.Typer()
    verbs.register(server)
    commands = [group, *group.commands.values(), *typer.main.get_group(server).commands.values()]
    commands += [verb for command in commands[1:] for verb in getattr(command, "commands", {}).values()]
    flags = {option for command in commands for p in command.params for option in p.opts}
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", TEXT)) - {"--help"}
    assert named <= flags, named - flags
    assert f"`{' '.join(server_verbs.VERBS)}`" in TEXT


def test_every_ci_system_that_is_known_is_named() -> None:
    assert len(keys._STEPS) == 6
    for system in ("GitHub Actions", "GitLab", "Buildkite", "CircleCI", "Azure Pipelines", "Jenkins"):
        assert system in TEXT
