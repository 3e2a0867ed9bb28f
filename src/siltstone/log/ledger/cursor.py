"""The ``__compaction`` subscription's cursor: up to where the log is compacted, and into which ledger.

Both lie in one file, in the words in which Pulsar shows them, so they move together or not at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from siltstone.errors import LedgerError
from siltstone.log.ledger.sealed import seal, unseal

SUBSCRIPTION = "__compaction"
LEDGER_PROPERTY = "CompactedTopicLedger"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """``horizon``: the first offset that ledger ``ledger_id`` does not cover."""

    horizon: int
    ledger_id: int

    @property
    def mark_delete_position(self) -> int:
        """The last offset that is covered, as Pulsar counts."""
        return self.horizon - 1


def encode_cursor(cursor: Cursor) -> bytes:
    """The cursor file's bytes."""
    return seal(
        {
            "subscription": SUBSCRIPTION,
            "markDeletePosition": cursor.mark_delete_position,
            "properties": {LEDGER_PROPERTY: cursor.ledger_id},
        }
    )


def decode_cursor(path: Path, data: bytes) -> Cursor:
    """The cursor of a file's bytes. Raises LedgerError."""
    fields = unseal(path, data)
    try:
        position, ledger_id = fields["markDeletePosition"], fields["properties"][LEDGER_PROPERTY]
        if not (isinstance(position, int) and isinstance(ledger_id, int) and position >= -1):
            raise ValueError
    except (KeyError, TypeError, ValueError):
        raise LedgerError(str(path), "not a compaction cursor") from None
    return Cursor(horizon=position + 1, ledger_id=ledger_id)
