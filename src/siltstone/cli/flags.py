"""Flags that many commands have, and the directories that they mean."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from siltstone.administration.places import Place
from siltstone.errors import UsageError

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
