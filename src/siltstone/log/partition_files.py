"""The files of a partition directory, and what they have to be before somebody relies on them.

Where a name is one of Kafka's (a segment's file with any suffix, a snapshot, the leader epochs, the topic id)
there must be a regular file; hard links are regular files. A name that is one of Siltstone's folders must be
a directory. Anything else (a symbolic link, a FIFO, a socket, a device, a directory in a file's place) is
refused by name, and with it the log: passed over, it would be a segment that nobody sees, and its neighbours
would be merged across it; followed, it would lead whoever cleans as root out of the directory.

Whoever owns the directory can put anything under the names of Siltstone's folders (staged files, a compacted
ledger, staged writes; Kafka's loader passes folders over). So before one of them is used or removed,
``has_own_folder`` asks for more than that it is a directory: its owner, root or the user who runs us made it.

Whoever changes or copies a log asks for more: each of them must belong to the owner of the partition
directory, as a broker's do. (A broker does not look at either: it follows links, and cannot open what it may
not read.)
"""

from __future__ import annotations

from pathlib import Path

from siltstone.base import files
from siltstone.base.errors import DirectoryRefusedError, UnsafeFileError
from siltstone.log.names import COMPACTED, DELETED, STAGED_WRITES, STAGING, TEMPORARY, is_kafkas_file

_FOLDERS = (STAGING, COMPACTED, STAGED_WRITES)


def partition_files(directory: Path, *, owned: bool = False) -> dict[str, files.FileStat]:
    """Every regular file of a partition directory by name.

    ``owned``: those of Kafka's and Siltstone's must be the directory owner's, too. Raises UnsafeFileError,
    OSError.
    """
    found = files.list_all(directory, may_vanish=(TEMPORARY, DELETED))
    owner = files.stat(directory).owner if owned else None
    for name, facts in sorted(found.items()):
        if facts.kind != files.FILE or owner not in (None, facts.owner) or name in _FOLDERS:
            _refuse_unsafe(directory / name, facts, owner)
    return {name: facts for name, facts in found.items() if facts.kind == files.FILE}


def refuse_unsafe_files(directory: Path, *, owned: bool = True) -> None:
    """Raises UnsafeFileError for the first file or folder that is not what it has to be, OSError."""
    partition_files(directory, owned=owned)


def _refuse_unsafe(path: Path, facts: files.FileStat, owner: int | None) -> None:
    if is_kafkas_file(path.name):
        refuse_kind(path, facts, files.FILE)
    elif path.name in _FOLDERS:
        refuse_kind(path, facts, files.DIRECTORY)
    else:
        return
    if owner not in (None, facts.owner):
        raise UnsafeFileError(
            f"{path}: belongs to user {facts.owner}, but its partition directory to user {owner}; the log is "
            f"left alone. Find out who put it there; if it is the log's own, chown {owner} {path}"
        )


def refuse_kind(path: Path, facts: files.FileStat, wanted: str) -> None:
    """Raises UnsafeFileError unless the file at ``path`` is of the ``wanted`` kind."""
    if facts.kind == wanted:
        return
    advice = "put the file itself in its place" if facts.kind == files.LINK else "find out who put it there"
    if wanted == files.DIRECTORY:
        advice = "look at what it is, and remove it"
    raise UnsafeFileError(
        f"{path}: a {facts.kind}, but a {wanted} is wanted here; the log is left alone. {advice.capitalize()}"
    )


def has_own_folder(partition: Path, name: str = STAGING) -> bool:
    """Is our folder ``name`` in the partition's directory? Raises DirectoryRefusedError, with the log's name,
    when something else has its name: nothing was changed then; OSError."""
    path = partition / name
    reason = files.folder_refusal(path)
    if reason is not None:
        raise DirectoryRefusedError(
            f"{partition.name}: {path} {reason}, so nothing is written to it or removed; "
            "look at what it is, remove it, and run the command again"
        )
    return files.exists(path)
