"""What lies beside a partition's originals, in the words that Pulsar shows it in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from siltstone.log.ledger.cursor import LEDGER_PROPERTY, SUBSCRIPTION
from siltstone.log.ledger.store import LedgerStore


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactedFacts:
    """A compacted ledger: ``mark_delete_position`` is the last offset that it covers, ``size`` in bytes."""

    mark_delete_position: int
    ledger_id: int
    entries: int
    size: int

    def to_json(self) -> Mapping[str, object]:
        """``cursors`` and ``compactedLedger``, as in Pulsar's internal statistics of a topic."""
        cursor = {
            "markDeletePosition": self.mark_delete_position,
            "properties": {LEDGER_PROPERTY: self.ledger_id},
        }
        ledger = {"ledgerId": self.ledger_id, "entries": self.entries, "size": self.size}
        return {"cursors": {SUBSCRIPTION: cursor}, "compactedLedger": ledger}


def compacted_facts(partition: Path) -> CompactedFacts | None:
    """A partition's compacted ledger, None without one. Raises LedgerError, OSError."""
    ledger = LedgerStore(partition).current()
    if ledger is None:
        return None
    return CompactedFacts(
        mark_delete_position=ledger.horizon - 1,
        ledger_id=ledger.id,
        entries=ledger.entries,
        size=ledger.size,
    )
