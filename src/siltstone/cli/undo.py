"""``siltstone undo``: put back what ``clean --keep-originals`` kept."""

from __future__ import annotations

from pathlib import Path

from siltstone.cli.output import Json, write_json, write_line
from siltstone.commands import clean


def undo(run: Path, /, *, json_: Json = False) -> int:
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
        write_json({"logs": logs})
        return 0
    for path, names in restored.items():
        write_line(f"{path}: {len(names)} segments restored" if names else f"{path}: nothing to undo")
    return 0
