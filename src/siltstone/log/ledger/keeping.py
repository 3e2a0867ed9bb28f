"""What a log does with its ledgers as it is opened, cut off and retained. A damaged one never stops it.

A ledger that covers what the log has no more is forgotten: the same offsets are about to be given to other
records. It goes before the log is cut, so that a crash never leaves the two side by side; a log that a crash
has cut is looked at when it is opened, before anything is appended.
"""

from __future__ import annotations

import logging
from pathlib import Path

from siltstone import files
from siltstone.errors import LedgerError
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
