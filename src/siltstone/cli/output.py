"""What all commands share: flags, and how JSON documents, tables, lines, notes and progress are printed."""

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self

from cyclopts import Parameter
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from siltstone.base.errors import UsageError
from siltstone.commands.places import Place

TABLE_WIDTH = 140
"""Columns of a table where standard output is no terminal."""


def write_json(document: object, *, flush: bool = False) -> None:
    """One JSON document, or one object of a stream, on standard output; ``flush``: it is wanted now.

    In ASCII where the output is not UTF-8, and half of a surrogate pair in JSON's own escape everywhere.
    """
    ascii_only = (sys.stdout.encoding or "").lower().replace("-", "") != "utf8"
    text = json.dumps(document, ensure_ascii=ascii_only).encode("utf-8", "backslashreplace").decode()
    sys.stdout.write(f"{text}\n")
    if flush:
        sys.stdout.flush()


def write_line(text: str) -> None:
    """One line on standard output."""
    sys.stdout.write(f"{text}\n")


def note(*texts: str) -> None:
    """Lines for people on standard error, behind everything that was printed before them."""
    sys.stdout.flush()
    for text in texts:
        sys.stderr.write(f"siltstone: {' '.join(text.split())}\n")


def write_table(title: str, names: Sequence[str], rows: Iterable[Sequence[Any]], left: int = 1) -> None:
    """A table on standard output; the first ``left`` columns are texts, the others numbers. None is
    empty; a ``Text`` keeps its style."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=TABLE_WIDTH)
    table = Table(title=Text(title), title_justify="left", header_style="bold")
    for number, name in enumerate(names):
        table.add_column(name, justify="left" if number < left else "right", overflow="fold")
    for row in rows:
        table.add_row(*(each if isinstance(each, Text) else Text(_shown(each)) for each in row))
    console.print(table)


class ProgressBars:
    """A progress bar for each name, on standard error; plain silence where that is no terminal."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def __call__(self, name: str, done: int, total: int) -> None:
        """Show that ``done`` of ``total`` are done."""
        if name not in self._tasks:
            self._tasks[name] = self._progress.add_task(escape(name), total=total)
        self._progress.update(self._tasks[name], completed=done, total=total)


def first_of(logs: Sequence[str]) -> str:
    """The first four names, and how many more there are."""
    return ", ".join(logs[:4]) + (f" and {len(logs) - 4} more" if len(logs) > 4 else "")


def _shown(value: object) -> str:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else str(value)


# Flags that many commands have, and the directories that they mean.

DEFAULTS = Parameter(negative=(), consume_multiple=False)
"""What holds for every flag: no --no-FLAG, one value each time that it is given."""
NUMBER_OR_WORD = Parameter(allow_leading_hyphen=True)
Directories = Annotated[Sequence[Path], Parameter(name="--dir")]
FromArguments = Annotated[Sequence[Path], Parameter(parse=False)]
Json = Annotated[bool, Parameter(name="--json")]
Topics = Annotated[Sequence[str], Parameter(name="--topic")]
Topic = Annotated[str | None, Parameter(name=("--topic", "-t"))]


def place_of(directories: Sequence[Path], properties: Path | None = None) -> Place:
    """The directories that are meant. Raises UsageError without any."""
    if not directories:
        raise UsageError("say which log directory with --dir")
    return Place(directories=tuple(directories), server_properties=properties)


@dataclass(frozen=True, kw_only=True)
class TopicFlags:
    """Which topic in which directories; other commands' flags build on it.

    Parameters
    ----------
    dir
        A log directory; several of one broker (log.dirs) by giving it several times.
    topic
        The topic.
    """

    dir: Directories = ()
    topic: Topic = None

    def the_topic(self) -> str:
        """The topic. Raises UsageError where none was said."""
        if self.topic is None:
            raise UsageError("say which topic with --topic")
        return self.topic
