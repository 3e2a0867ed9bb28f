"""``siltstone undo``: put back what ``clean --keep-originals`` kept."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from siltstone.commands import clean


def undo(run: Path, /, *, json_: Annotated[bool, Parameter(name="--json", negative=())] = False) -> int:
    """Put back the segments that a run of clean --keep-originals replaced, and the cleaner checkpoint.

    Refused once a log was appended to, rolled or cleaned since.

    Parameters
    ----------
    run
        The run's folder, KEEP/RUN, as clean printed it.
    json_
        Print one JSON document.
    """
    restored = clean.undo(run)
    if json_:
        logs = [{"directory": path, "restored": names} for path, names in restored.items()]
        sys.stdout.write(json.dumps({"logs": logs}) + "\n")
        return 0
    for path, names in restored.items():
        sys.stdout.write(
            f"{path}: {len(names)} segments restored\n" if names else f"{path}: nothing to undo\n"
        )
    return 0
