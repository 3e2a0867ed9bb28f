"""What a log does with its ledgers as it is opened, cut off and retained. A damaged one never stops it.

A ledger that covers what the log has no more is forgotten: the same offsets are about to be given to other
records. It goes before the log is cut, so that a crash never leaves the two side by side; a log that a crash
has cut is looked at when it is opened, before anything is appended.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import NamedTuple

from siltstone.base import files
from siltstone.base.config import LONG_MAX
from siltstone.base.errors import LedgerError
from siltstone.log.ledger.manifest import BY_TIME
from siltstone.log.ledger.store import LedgerStore

_logger = logging.getLogger("siltstone")


def forget_behind(directory: Path, end_offset: int) -> None:
    """Forget a partition's ledger when the log ends, or is about to, below its horizon. Raises OSError."""
    try:
        gone = LedgerStore(directory).forget_behind(end_offset)
    except LedgerError as error:
        _logger.warning("%s", error)
        return
    if gone is not None:
        _logger.warning(
            "%s: the log is cut off at offset %d: ledger %d, which covers those below %d, is forgotten; "
            "compact the log anew",
            directory,
            end_offset,
            gone.ledger_id,
            gone.horizon,
        )


def settle(directory: Path, end_offset: int) -> None:
    """At the opening of a log for writing: forget what it has no more, sweep what is left over.

    Raises OSError.
    """
    store = LedgerStore(directory)
    if not files.exists(store.folder):
        return
    forget_behind(directory, end_offset)
    try:
        store.collect()
    except LedgerError as error:
        _logger.warning("%s", error)


# What cleaning in place leaves for the next compaction beside the originals, so that both come to the same.
#
# A tombstone above the horizon of a ledger that may have its key stays until the ledger has met it. Where the
# ledger goes by time, nothing above its horizon is cleaned: cleaning goes by offsets, and would take a later
# event that an older one has overtaken.


class Uncovered(NamedTuple):
    """Offsets: tombstones from ``tombstones_from`` on stay, nothing from ``clean_below`` on is cleaned."""

    tombstones_from: int = LONG_MAX
    clean_below: int = LONG_MAX


def uncovered(partition: Path) -> Uncovered:
    """What a partition's ledger needs. One that is damaged keeps all tombstones. Raises OSError."""
    store = LedgerStore(partition)
    if not files.exists(store.folder):
        return Uncovered()
    try:
        ledger = store.current()
    except LedgerError:
        return Uncovered(tombstones_from=0)
    if ledger is None:
        return Uncovered()
    by_time = ledger.order == BY_TIME
    return Uncovered(ledger.horizon, ledger.horizon if by_time else LONG_MAX)
