"""What the commands print with: JSON documents, tables, lines, notes."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.console import Console
from rich.table import Table
from rich.text import Text

from siltstone.base.errors import UsageError
from siltstone.commands.places import Place


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
    """A table on standard output; the first ``left`` columns are texts, the others numbers. None is empty."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=140)
    table = Table(title=Text(title), title_justify="left", header_style="bold")
    for number, name in enumerate(names):
        table.add_column(name, justify="left" if number < left else "right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(_shown(each)) for each in row))
    console.print(table)


def size_text(size: int) -> str:
    """Bytes for people: ``1.5 MB``, thousands by thousands."""
    amount = float(size)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"


def _shown(value: object) -> str:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else str(value)


# Flags that many commands have, and the directories that they mean.

FLAG = Parameter(negative=())
MANY = Parameter(negative=(), consume_multiple=False)
NUMBER_OR_WORD = Parameter(negative=(), allow_leading_hyphen=True)
Directories = Annotated[tuple[Path, ...], Parameter(name="--dir", negative=(), consume_multiple=False)]
Json = Annotated[bool, Parameter(name="--json", negative=())]
Topic = Annotated[str | None, Parameter(name=("--topic", "-t"))]


def place_of(
    directories: Sequence[Path], bootstrap_server: str | None, properties: Path | None = None
) -> Place:
    """The directories that are meant. Raises UsageError without any."""
    if bootstrap_server is not None:
        raise UsageError("--bootstrap-server comes with the broker; say which directory with --dir")
    if not directories:
        raise UsageError("say which log directory with --dir")
    return Place(directories=tuple(directories), server_properties=properties)
