"""Explains why a record is still in its log: the first reason that applies, and when it ends.

::

    is it not below the high watermark?                                 ─► above_watermark
      │ below
    does the topic not compact?                                         ─► policy_delete
      │ it does
    has it a value, and is it the last of its key?                      ─► newest
      │ no: superseded, aborted, a tombstone, a marker, without a key
    is it, or what supersedes it, outside of the cleanable range?       ─► active_segment · above_watermark ·
      │ no                                                                 open_transaction · within_min_lag ·
      │                                                                    held_by_ledger · not_flushed
    is the log left alone?                                              ─► uncleanable · paused · skipped
      │ no
    does it lie, with what supersedes it, below the cleaner checkpoint? ─► both_clean
      │ no
    has a tombstone or a marker no horizon, or one to come?             ─► tombstone_unstamped ·
      │ no                                                                 tombstone_waiting ·
      │                                                                    held_by_ledger · marker_needed
    is the log due?                                                     ─► due, else not_dirty_enough

A search for the next record of the key reads the log above the record, within a budget. When the budget is
used up, the code is ``searching``, and ``next_offset`` says where to continue.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from siltstone.base.clock import time_text
from siltstone.base.errors import UnknownRecordError
from siltstone.base.records.columns import RecordColumns
from siltstone.base.records.layout import CONTROL_BIT, BatchHeaders, have_delete_horizons
from siltstone.base.records.matching import rows_with_key
from siltstone.commands.browsing import Budget
from siltstone.commands.cleaning_conditions import (
    ABOVE_WATERMARK,
    HELD_BY_LEDGER,
    Blocker,
    CleaningConditions,
    ratio_sentence,
)
from siltstone.commands.explain_page import counted
from siltstone.compaction.inplace import ranges
from siltstone.log.fetch import READ_COMMITTED, READ_UNCOMMITTED, LogView
from siltstone.log.reading import FixedLog, LogReader

NEWEST, POLICY_DELETE, UNCLEANABLE, PAUSED = "newest", "policy_delete", "uncleanable", "paused"
NOT_DIRTY_ENOUGH, DUE = "not_dirty_enough", "due"
TOMBSTONE_UNSTAMPED, TOMBSTONE_WAITING = "tombstone_unstamped", "tombstone_waiting"
MARKER_NEEDED, SKIPPED, SEARCHING = "marker_needed", "skipped", "searching"
BOTH_CLEAN = "both_clean"
"""Codes of reasons: see the module's docstring. The others are in ``cleaning_conditions``."""
VALUE, TOMBSTONE, KEYLESS, ABORTED, MARKER = "value", "tombstone", "keyless", "aborted", "marker"
"""Kinds of records."""
_WHAT = {
    KEYLESS: "it has no key, and cleanings remove such records",
    ABORTED: "its transaction was aborted",
    TOMBSTONE: "it is a tombstone",
    MARKER: "it is the end of a transaction",
}
"""By kind of record, why a cleaning removes it although no later record has its key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetainedReason:
    """Why the record at ``offset`` is still there: a ``code`` of this module or of
    ``cleaning_conditions``, and a sentence.

    ``kind``: of the record, None if it cannot be read; ``superseded_by``: the offset of a later record of
    its key (``_next_of_key``), None if none was found; ``until_ms``: when the reason ends, or the time at
    which the record goes; ``place``: in the queue, if it is due; ``next_offset``: where to continue a search
    that was not ended.
    """

    offset: int
    code: str
    sentence: str
    kind: str | None = None
    superseded_by: int | None = None
    until_ms: int | None = None
    place: int | None = None
    next_offset: int | None = None

    def to_json(self) -> dict[str, object]:
        """One object; unknown values are null."""
        return {name: getattr(self, name) for name in RetainedReason.__slots__}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Record:
    """The record that is asked about: its kind, key, and the headers of its batch (one row)."""

    offset: int
    kind: str
    key: bytes | None
    batch: BatchHeaders

    @property
    def horizon_ms(self) -> int | None:
        """The delete horizon of its batch, None without one."""
        return int(self.batch["base_timestamp"][0]) if have_delete_horizons(self.batch)[0] else None


def why_retained(
    conditions: CleaningConditions,
    offset: int,
    *,
    search_from: int | None = None,
    superseded_by: int | None = None,
    budget: Budget | None = None,
) -> RetainedReason:
    """Why the record at ``offset`` is still there.

    ``search_from`` and ``superseded_by``: to continue a search, ``next_offset`` and ``superseded_by`` of the
    result with the code ``searching``. ``budget``: of this call, by default that of a request.
    Raises UnknownRecordError, CorruptRecordError, OSError.
    """
    view = conditions.log.view
    if view.high_watermark <= offset < view.log_end_offset:
        sentence = f"It is not replicated: the high watermark is {view.high_watermark}."
        return RetainedReason(offset=offset, code=ABOVE_WATERMARK, sentence=sentence)
    record = _read(conditions, offset)
    if "compact" not in conditions.config.policies:
        return _policy_delete(conditions, record)
    next_offset, superseder = None, None
    if record.kind in (VALUE, TOMBSTONE) and record.key is not None:
        start = max(offset + 1, search_from or 0)
        superseder, next_offset = _next_of_key(conditions, record.key, start, budget or Budget())
        superseder = superseder if superseder is not None else superseded_by
    answer = RetainedReason(
        offset=offset, code=SEARCHING, sentence="", kind=record.kind, superseded_by=superseder
    )
    if next_offset is not None:
        sentence = f"No later record of its key was found below offset {next_offset} yet; continue."
        if superseder is not None:
            sentence = f"The search for a dirty record of its key has come to offset {next_offset}; continue."
        return replace(answer, sentence=sentence, next_offset=next_offset)
    if superseder is None and record.kind == VALUE:
        return _newest(conditions, answer)
    return _of_removable(conditions, record, answer)


def _read(conditions: CleaningConditions, offset: int) -> _Record:
    """The record at an offset. Raises UnknownRecordError."""
    if not conditions.log.log_start_offset <= offset < conditions.log.log_end_offset:
        raise _unknown(conditions, offset)
    reader = LogReader(conditions.log, offset, isolation=READ_UNCOMMITTED, end=offset + 1)
    reader.control_records = True
    polled = reader.poll()
    if polled is None:
        raise _unknown(conditions, offset)
    columns, batch = polled.columns, polled.batches[polled.columns.batch[:1]]
    key = columns.key(0)
    return _Record(offset=offset, kind=_kind(conditions, offset, columns, batch), key=key, batch=batch)


def _unknown(conditions: CleaningConditions, offset: int) -> UnknownRecordError:
    start, end = conditions.log.log_start_offset, conditions.log.log_end_offset
    if offset >= end:
        why = f"the next record that is written gets the offset {end}"
    elif offset >= start:
        why = "a cleaning has removed the one that was there; the topic's history lists cleanings"
    else:
        why = f"retention or delete-records has removed all below the log start, {start}"
    where = str(conditions.log.topic_partition)
    return UnknownRecordError(f"there is no record at offset {offset}", path=where, advice=why)


def _kind(conditions: CleaningConditions, offset: int, columns: RecordColumns, batch: BatchHeaders) -> str:
    if batch["magic"][0] == 2 and batch["attributes"][0] & CONTROL_BIT:
        return MARKER
    if _reader_without_aborted(conditions.log.view, offset, offset + 1).poll() is None:
        return ABORTED
    if columns.key_size[0] < 0:
        return KEYLESS
    return TOMBSTONE if columns.value_size[0] < 0 else VALUE


def _reader_without_aborted(view: LogView, start: int, end: int) -> LogReader:
    """A reader of all records but aborted ones: with read_committed, but it does not stop at the last stable
    offset, so that it also gets the records of open transactions."""
    log = FixedLog(view._replace(last_stable_offset=view.high_watermark))
    return LogReader(log, start, isolation=READ_COMMITTED, end=end)


def _next_of_key(
    conditions: CleaningConditions, key: bytes, start: int, budget: Budget
) -> tuple[int | None, int | None]:
    """(The offset of a later record of ``key``, where to continue the search or None if it has ended.)

    A record in the dirty section is preferred to one in the clean section (``clean_offset``), since only such
    a record supersedes others in a cleaning. Aborted records supersede none; those of a transaction that is
    still open may.
    """
    view, clean_offset = conditions.log.view, None
    if start >= view.high_watermark:
        return None, None
    reader = _reader_without_aborted(view, start, view.high_watermark)
    while True:
        before = reader.bytes_read
        polled = reader.poll_once()
        if polled is None:
            return clean_offset, None
        budget.spent += reader.bytes_read - before
        for offset in _offsets_of_key(polled.columns, key):
            if offset >= conditions.range.first_dirty:
                return offset, None
            clean_offset = offset
        if budget.is_over and reader.offset < view.high_watermark:
            return clean_offset, reader.offset


def _offsets_of_key(columns: RecordColumns, key: bytes) -> list[int]:
    """The offsets of the records with this key."""
    offsets: list[int] = columns.offset[rows_with_key(columns, key)].tolist()
    return offsets


def _policy_delete(conditions: CleaningConditions, record: _Record) -> RetainedReason:
    """Retention alone removes it, with its whole segment."""
    config, view = conditions.log_config, conditions.log.view
    number = max(
        number for number, segment in enumerate(view.segments) if segment.base_offset <= record.offset
    )
    until_ms, ways = None, []
    if config.deletes and config.retention_ms >= 0:
        until_ms = view.segments[number].largest_timestamp + config.retention_ms
        ways.append(f"after {time_text(until_ms)} (retention.ms)")
    if config.deletes and config.retention_bytes >= 0:
        above = sum(view.size_of(later) for later in range(number + 1, len(view.segments)))
        missing = max(config.retention_bytes - above, 0)
        ways.append(
            f"when {counted(missing, 'byte more has', 'bytes more have')} followed it (retention.bytes)"
        )
    policy = ",".join(conditions.config.policies) or "none"
    goes = f"it goes with its segment {', or '.join(ways)}" if ways else "nothing limits how long it stays"
    return RetainedReason(
        offset=record.offset,
        code=POLICY_DELETE,
        sentence=f"The topic does not compact (cleanup.policy={policy}): {goes}.",
        kind=record.kind,
        until_ms=until_ms,
    )


def _newest(conditions: CleaningConditions, answer: RetainedReason) -> RetainedReason:
    sentence = "It is the last record of its key: compaction never removes it"
    if conditions.log_config.deletes:
        sentence += "; retention does, with its segment (cleanup.policy has delete)"
    return replace(answer, code=NEWEST, sentence=f"{sentence}.")


def _of_removable(conditions: CleaningConditions, record: _Record, answer: RetainedReason) -> RetainedReason:
    """Why a record that a cleaning removes, sooner or later, is still there."""
    superseder = answer.superseded_by
    if superseder is not None and record.kind == TOMBSTONE and not _supersedes(conditions, superseder):
        superseder = None  # until a cleaning reaches the newer record, the tombstone's own horizon counts
    what = (
        _WHAT[record.kind] if superseder is None else f"a newer record, at offset {superseder}, has its key"
    )
    blocker = _blocker(conditions, record.offset, superseder)
    if blocker is not None:
        sentence = f"{_capital(what)}; but {blocker.sentence}."
        return replace(answer, code=blocker.code, sentence=sentence, until_ms=blocker.until_ms)
    if conditions.uncleanable is not None:
        since = time_text(conditions.uncleanable.since_ms)
        sentence = f"The cleaner has skipped the log since {since}: {conditions.uncleanable.reason}."
        return replace(answer, code=UNCLEANABLE, sentence=sentence)
    if conditions.is_paused:
        return replace(answer, code=PAUSED, sentence="The cleaning of the log is paused.")
    if conditions.skipped:
        return replace(answer, code=SKIPPED, sentence=f"The log is not cleaned: {conditions.skipped}.")
    if superseder is not None and superseder < conditions.range.first_dirty:
        sentence = (
            f"{_capital(what)}, but both lie below the cleaner checkpoint {conditions.range.first_dirty}: it "
            "goes with the next record of the key, or when the checkpoint is reset."
        )
        return replace(answer, code=BOTH_CLEAN, sentence=sentence)
    if superseder is None and record.kind in (TOMBSTONE, MARKER):
        waits = _waits_for_horizon(conditions, record, answer)
        if waits is not None:
            return waits
    return _due_or_not(conditions, answer, what)


def _supersedes(conditions: CleaningConditions, offset: int) -> bool:
    """Is a record in the dirty section, so that a cleaning now removes older ones of its key?"""
    return conditions.range.first_dirty <= offset < conditions.range.end


def _blocker(conditions: CleaningConditions, offset: int, superseder: int | None) -> Blocker | None:
    """The cause that holds back a record, or the record that supersedes it; None if neither is held back."""
    blocker = conditions.blocker_of(max(offset, superseder or 0))
    if blocker is not None and superseder is not None and offset < blocker.offset:
        # Only the superseding record is held back: "it is in the active segment, …" is said of that one.
        sentence = blocker.sentence.replace("it is ", f"offset {superseder} is ", 1)
        return replace(blocker, sentence=sentence)
    return blocker


def _waits_for_horizon(
    conditions: CleaningConditions, record: _Record, answer: RetainedReason
) -> RetainedReason | None:
    """Why a tombstone or a marker waits for its delete horizon; None if that has passed."""
    horizon_ms, is_marker = record.horizon_ms, record.kind == MARKER
    if horizon_ms is None and is_marker:
        sentence = (
            "It is the end of a transaction that had records left when the log was last cleaned, or that no "
            "cleaning has looked at yet; once none is left, a cleaning gives it a delete horizon."
        )
        return replace(answer, code=MARKER_NEEDED, sentence=sentence)
    if record.batch["magic"][0] < 2:
        waits = _waits_in_old_format(conditions, record, answer)
        if waits is not None:
            return waits
    elif horizon_ms is None:
        retention = conditions.log_config.delete_retention_ms
        sentence = (
            "It is a tombstone. The next cleaning gives it a delete horizon, "
            f"{retention:,} ms later (delete.retention.ms); a cleaning after that removes it."
        )
        return replace(answer, code=TOMBSTONE_UNSTAMPED, sentence=sentence)
    elif horizon_ms > conditions.now_ms:
        what = "the end of a transaction without records" if is_marker else "a tombstone"
        sentence = f"It is {what}; a cleaning after {time_text(horizon_ms)}, its delete horizon, removes it."
        return replace(answer, code=TOMBSTONE_WAITING, sentence=sentence, until_ms=horizon_ms)
    # A cleaning removes tombstones only in batches that end below this offset.
    tombstones_from = conditions.bounds.tombstones_from
    if not is_marker and int(record.batch["last_offset"][0]) >= tombstones_from:
        sentence = (
            "It is a tombstone that has waited long enough, but side-by-side compaction, which may have a "
            f"record with its key, has only reached offset {tombstones_from}."
        )
        return replace(answer, code=HELD_BY_LEDGER, sentence=sentence)
    return None


def _waits_in_old_format(
    conditions: CleaningConditions, record: _Record, answer: RetainedReason
) -> RetainedReason | None:
    """Why a tombstone of record format v0 or v1, which has no delete horizon, waits: it stays while its
    segment is not older than the last clean one by ``delete.retention.ms``. None if it does not."""
    retention, segments = conditions.log_config.delete_retention_ms, conditions.log.view.segments
    facts = [
        ranges.PlanSegment(base_offset=segment.base_offset, size=0, modified_ms=segment.modified_ms)
        for segment in segments
    ]
    horizon_ms = ranges.legacy_delete_horizon(facts, conditions.range.first_dirty, retention)
    modified_ms = [fact.modified_ms for fact in facts if fact.base_offset <= record.offset][-1]
    if modified_ms <= horizon_ms:
        return None
    sentence = (
        "It is a tombstone of an old record format: a cleaning removes it once a clean segment was written "
        f"{retention:,} ms (delete.retention.ms) after its own."
    )
    return replace(answer, code=TOMBSTONE_UNSTAMPED, sentence=sentence)


def _due_or_not(conditions: CleaningConditions, answer: RetainedReason, what: str) -> RetainedReason:
    """Of a record that the next cleaning removes: is the log due? ``what``: why it removes it."""
    what = _capital(what)
    if conditions.is_being_cleaned:
        return replace(answer, code=DUE, sentence=f"{what}. The log is being cleaned now.")
    # An idle log is cleaned, too, when the delete horizons of all its tombstones have passed.
    if conditions.is_eligible or conditions.horizons.is_due:
        place = "" if conditions.place is None else f", in place {conditions.place} of the queue"
        sentence = f"{what}. The log is due{place}: the next cleaning removes the record."
        return replace(answer, code=DUE, sentence=sentence, place=conditions.place)
    if not conditions.range.cleanable_bytes:
        sentence = f"{what}. The log is not due: nothing in it is dirty"
    else:
        sentence = f"{what}. The log is not due: {ratio_sentence(conditions)}"
    return replace(answer, code=NOT_DIRTY_ENOUGH, sentence=f"{sentence}.", until_ms=conditions.forced_ms)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
