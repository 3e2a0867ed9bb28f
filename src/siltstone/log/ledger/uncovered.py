"""What cleaning in place leaves for the next compaction beside the originals, so that both come to the same.

A tombstone above the horizon of a ledger that may have its key stays until the ledger has met it. Where the
ledger goes by time, nothing above its horizon is cleaned: cleaning goes by offsets, and would take a later
event that an older one has overtaken.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from siltstone import files
from siltstone.config import LONG_MAX
from siltstone.errors import LedgerError
from siltstone.log.ledger.manifest import BY_TIME
from siltstone.log.ledger.store import LedgerStore


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
