"""docs/troubleshooting.md has every error code, and every command on a page has flags that exist."""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from siltstone.base import errors
from siltstone.base.errors import LogError, SiltstoneError
from siltstone.cli.main import COMMANDS, build_app
from siltstone.cli.output import DEFAULTS
from tests.support.pages import DOCS, sections

PAGES = [
    page for page in (*sorted(DOCS.glob("*.md")), DOCS.parent / "README.md") if page.name != "recordings.md"
]


def error_classes(parent: type[SiltstoneError] = SiltstoneError) -> Iterator[type[SiltstoneError]]:
    yield parent
    for child in parent.__subclasses__():
        yield from error_classes(child)


def test_every_code_is_on_the_page_with_kafkas_number() -> None:
    rows = re.findall(r"^\| `([A-Z_]+)`(?: \((-?\d+)\))?", sections("troubleshooting.md")["By code"], re.M)
    known = {
        kind.code: str(kind.error_code) if issubclass(kind, LogError) else ""
        for kind in error_classes()
        if kind.__module__ == errors.__name__
    }
    assert known.items() <= dict(rows).items()


@functools.cache
def flags_of(command: str) -> set[str]:
    """The flags of a command; --help and --version come with all of them."""
    arguments = build_app()[command].assemble_argument_collection(default_parameter=DEFAULTS)
    names = (flag for argument in arguments for flag in (*argument.names, *argument.negatives))
    return {flag for flag in names if flag.startswith("-")} | {"--help", "--version"}


def command_lines(page: Path) -> Iterator[list[str]]:
    """Every ``siltstone COMMAND …`` in backquotes or in a console example, as words."""
    text = page.read_text(encoding="utf-8")
    examples = "\n".join(re.findall(r"```console\n(.*?)```", text, re.DOTALL)).replace("\\\n", " ")
    typed = re.findall(r"^[$#] (.*)$", examples, re.MULTILINE)
    for line in [*typed, *re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))]:
        for part in re.split(r" \\\||[|;]| #", line):
            match = re.match(r"(?:.*/)?siltstone ([a-z-]+)( .*)?$", part.strip())
            if match and match[1] in COMMANDS:
                yield [match[1], *shlex.split(match[2] or "")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_flags_of_every_command_on_a_page_exist(page: Path) -> None:
    for command, *words in command_lines(page):
        flags = {word.partition("=")[0] for word in words if re.match(r"--?[a-zA-Z]", word)}
        assert flags <= flags_of(command), f"siltstone {command} {' '.join(words)}"
