"""A group's winners between two jobs: written by the task that gathered them, verified by whoever reads them.

::

    BASE.ATTEMPT.winners     uint32, little-endian, ascending: offsets less the group's base

There is no header: count and CRC32C are in the task's report, and from there in the journal. A task writes
only a file of its own name, made with O_EXCL, and makes it durable itself. A group without winners has none.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from crc32c import crc32c

from siltstone import files
from siltstone.cleaner.contest import in_order
from siltstone.cleaner.judging import Offsets
from siltstone.cleaner.rewrite import Buffers
from siltstone.cleaner.staging import Rewritten, rewrite_group
from siltstone.cleaner.work import Group, LogWork, Trouble, trouble_of
from siltstone.errors import CheckFailedError
from siltstone.log.transactions import NOTHING, Carried

WINNER_BYTES = 4
_CHUNK_BYTES = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class WinnersFile:
    """One group's file: its name in the run's folder ("" without winners), how many, and their CRC32C.

    ``carried``: what the group starts with, of transactions.
    """

    group: int
    name: str = ""
    count: int = 0
    checksum: int = 0
    carried: Carried = NOTHING
    trouble: Trouble | None = None


def write_winners(
    work: LogWork, group: Group, winners: Offsets, attempt: str, carried: Carried = NOTHING
) -> WinnersFile:
    """Write a group's winners, in any order, to this attempt's file. Never raises: the report says it."""
    assert work.staging is not None
    if not len(winners):
        return WinnersFile(group=group.index, carried=carried)
    name = f"{group.base_offset:020d}.{attempt}.winners"
    path = Path(work.staging) / name
    try:
        ascending = in_order(winners, group.end_offset - group.base_offset)
        data = ascending.astype("<u4", copy=False).view(np.uint8).data
        with files.Writer(path) as writer:
            writer.write(data)
            files.inherit_owner(path)
            writer.sync()
        return WinnersFile(
            group=group.index, name=name, count=len(winners), checksum=crc32c(data), carried=carried
        )
    except Exception as error:
        if not isinstance(error, FileExistsError):
            with contextlib.suppress(OSError):
                files.unlink(path)
        return WinnersFile(group=group.index, trouble=trouble_of(error))


def read_winners(folder: Path, file: WinnersFile) -> Offsets:
    """The winners again, ascending. Raises CheckFailedError when they are not those that were written."""
    winners = np.empty(file.count, "<u4")
    if file.count:
        with files.Reader(folder / file.name) as reader:
            got = reader.read_into(winners.view(np.uint8), 0)
            sound = got == reader.stat.size == winners.nbytes
        if not sound or crc32c(winners.view(np.uint8).data) != file.checksum:
            raise CheckFailedError(f"{folder / file.name}: not the winners that were gathered")
    return winners.astype(np.uint32, copy=False)


def is_sound(folder: Path, file: WinnersFile) -> bool:
    """Are the winners those that were written? Takes little memory, however many they are."""
    if not file.count:
        return True
    buffer, position, checksum = np.empty(_CHUNK_BYTES, np.uint8), 0, 0
    try:
        with files.Reader(folder / file.name) as reader:
            if reader.stat.size != file.count * WINNER_BYTES:
                return False
            while got := reader.read_into(buffer, position):
                checksum = crc32c(buffer[:got].data, checksum)
                position += got
    except OSError:
        return False
    return checksum == file.checksum


def rewrite_from(
    work: LogWork, group: Group, file: WinnersFile, attempt: str, buffers: Buffers | None = None
) -> Rewritten:
    """``staging.rewrite_group`` with the winners of a file. Never raises: the report says what is wrong."""
    assert work.staging is not None and file.group == group.index
    try:
        winners = read_winners(Path(work.staging), file)
    except Exception as error:
        return Rewritten(group=group.index, trouble=trouble_of(error))
    return rewrite_group(work, group, winners, attempt, file.carried, buffers)
