"""docs/commands.md names every command, and under each exactly the flags that its parser has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from siltstone.cli.main import COMMANDS, build_app
from siltstone.cli.output import DEFAULTS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "commands.md"


def sections() -> dict[str, str]:
    """The page's text by heading."""
    _, *parts = re.split(r"^## (.+)$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def test_every_command_has_a_section_and_a_row() -> None:
    assert sections().keys() == COMMANDS.keys()
    introduction = PAGE.read_text(encoding="utf-8").split("\n## ")[0]
    for name in COMMANDS:
        assert f"| [`{name}`](#{name}) |" in introduction


@pytest.mark.parametrize("name", COMMANDS)
def test_a_section_has_the_flags_of_the_parser(name: str) -> None:
    command = build_app()[name]
    known = {
        flag
        for argument in command.assemble_argument_collection(default_parameter=DEFAULTS)
        if argument.parse
        for flag in (*argument.names, *argument.negatives)
        if flag.startswith("-")
    }
    rows = re.findall(r"^\| (`-.*?) \|", sections()[name], flags=re.MULTILINE)
    assert {flag for row in rows for flag in re.findall(r"`(--?[\w-]+)`", row)} == known


@pytest.mark.parametrize("name", COMMANDS)
def test_the_commands_own_help_says_more_than_the_list(name: str) -> None:
    assert build_app(name)[name].help != COMMANDS[name]
    assert build_app()[name].help == COMMANDS[name]
