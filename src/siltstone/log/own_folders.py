"""Folders of our own inside a partition's directory: staged files, a compacted ledger, staged writes.

Kafka's loader passes folders in there over. Whoever owns the partition's directory can put anything under
their names, so before one of them is used or removed it must be what it should be: a folder, no link to one,
that the directory's owner, root or the user who runs us made.
"""

from __future__ import annotations

from pathlib import Path

from siltstone.base import files
from siltstone.base.errors import DirectoryRefusedError
from siltstone.log.names import STAGING


def has_own_folder(partition: Path, name: str = STAGING) -> bool:
    """Is our folder ``name`` in the partition's directory? Raises DirectoryRefusedError, with the log's name,
    when something else has its name: nothing was changed then; OSError."""
    path = partition / name
    reason = files.why_not_our_folder(path)
    if reason is not None:
        raise DirectoryRefusedError(
            f"{partition.name}: {path} {reason}, so nothing is written to it or removed; "
            "look at what it is, remove it, and run the command again"
        )
    return files.exists(path)
