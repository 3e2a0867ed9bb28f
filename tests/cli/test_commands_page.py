"""docs/commands.md names every command, and under each exactly the flags that its parser has."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest

from siltstone.cli.main import COMMANDS, build_app
from siltstone.cli.output import DEFAULTS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "commands.md"
PAGES = [
    page
    for page in [*PAGE.parents[1].glob("*.md"), *PAGE.parent.rglob("*.md")]
    if page.name not in ("CHANGELOG.md", "recordings.md")  # earlier releases; errors on purpose
]


def sections() -> dict[str, str]:
    """The page's text by heading."""
    _, *parts = re.split(r"^## (.+)$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


@functools.cache
def flags_of(name: str) -> frozenset[str]:
    """The flags of a command's parser."""
    return frozenset(
        flag
        for argument in build_app()[name].assemble_argument_collection(default_parameter=DEFAULTS)
        if argument.parse
        for flag in (*argument.names, *argument.negatives)
        if flag.startswith("-")
    )


def test_every_command_has_a_section_and_a_row() -> None:
    assert sections().keys() == COMMANDS.keys()
    introduction = PAGE.read_text(encoding="utf-8").split("\n## ")[0]
    for name in COMMANDS:
        assert f"| [`{name}`](#{name}) |" in introduction


@pytest.mark.parametrize("name", COMMANDS)
def test_a_section_has_the_flags_of_the_parser(name: str) -> None:
    known = flags_of(name)
    rows = re.findall(r"^\| (`-.*?) \|", sections()[name], flags=re.MULTILINE)
    assert {flag for row in rows for flag in re.findall(r"`(--?[\w-]+)`", row)} == known


@pytest.mark.parametrize("name", COMMANDS)
def test_the_commands_own_help_says_more_than_the_list(name: str) -> None:
    assert build_app(name)[name].help != COMMANDS[name]
    assert build_app()[name].help == COMMANDS[name]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_flags_in_examples_of_other_pages_exist(page: Path) -> None:
    """Of each command line that a page shows, in a block or between backquotes."""
    text = re.sub(r"\\\n\s*", " ", page.read_text(encoding="utf-8"))
    unknown = [
        (name, flag)
        for name, rest in re.findall(r"siltstone ([a-z-]+)((?: [^`\n|;#>)]*)?)", text)
        if name in COMMANDS
        for flag in re.findall(r"(?<= )--[a-z][\w-]*", rest)
        if flag not in flags_of(name) and flag != "--help"
    ]
    assert unknown == []
