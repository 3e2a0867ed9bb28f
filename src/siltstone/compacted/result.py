"""What a compaction has done, as data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """Records of the tail that are not in the ledger, by reason.

    ``superseded``: another record of the key won. ``deleted``: a null or empty value, which deletes its key
    and is itself not kept. ``keyless``: without a key, where those are not retained. ``aborted``: of aborted
    transactions. Control records are no records here.
    """

    superseded: int = 0
    deleted: int = 0
    keyless: int = 0
    aborted: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return self.superseded + self.deleted + self.keyless + self.aborted


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionResult:
    """A compaction that succeeded; sizes in bytes, ``seconds`` of the whole call.

    ``changed``: a new ledger was committed; False where there was nothing new, and the ledger is as it was
    (``ledger_id`` None: there never was one). ``horizon``: the first offset that the ledger does not cover.
    ``entries`` and ``size`` are the ledger's. ``read_records`` and ``read_bytes`` are the tail's, ``written``
    its records that went into the ledger: ``read_records == written + removed.total``. ``written_bytes``: of
    the new generation's logs. ``hidden``: records of the ledger before it that this one no longer shows.
    ``folded``: generations that were put together anew.
    """

    ledger_id: int | None
    horizon: int
    entries: int = 0
    size: int = 0
    changed: bool = False
    read_records: int = 0
    read_bytes: int = 0
    written: int = 0
    written_bytes: int = 0
    removed: Removed = Removed()
    hidden: int = 0
    folded: tuple[int, ...] = ()
    seconds: float = 0.0
