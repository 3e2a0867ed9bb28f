"""Why is this record still here? The first of these reasons that holds, and what changes it.

::

    its topic does not compact ........................................ policy_delete
    a marker of a transaction ......................................... marker_needed
    without a key ..................................................... keyless
    no later record has its key ┬ a value ............................. newest
                                └ a tombstone ... held_by_ledger, tombstone_unstamped, tombstone_waiting, due
    a later one has it ┬ that one is not cleaned yet .. active_segment, above_watermark, open_transaction,
                       │                                within_min_lag
                       └ it may be cleaned ........... uncleanable, not_dirty_enough, due

The rules are the planner's: the sections and the state of the log come from the catalogue. The search for a
later record is bounded; where it does not reach the end, the answer is ``unknown`` and says how far it came.
"""

from __future__ import annotations

from dataclasses import dataclass

from siltstone.base.clock import time_text
from siltstone.base.config import Config
from siltstone.base.errors import UsageError
from siltstone.base.records.layout import CONTROL_BIT, BatchHeaders, have_delete_horizons
from siltstone.commands.browsing import BrowsedTopic, Budget, RecordQuery, browse
from siltstone.commands.watch import DUE, WatchedLog
from siltstone.compaction.inplace.ranges import CleanableRange
from siltstone.log.fetch import READ_COMMITTED
from siltstone.log.ledger.store import cleaning_bounds
from siltstone.log.read_only import ReadableLog
from siltstone.log.reading import LogReader

NEWEST, POLICY_DELETE, KEYLESS, MARKER_NEEDED = "newest", "policy_delete", "keyless", "marker_needed"
ACTIVE_SEGMENT, ABOVE_WATERMARK, OPEN_TRANSACTION = "active_segment", "above_watermark", "open_transaction"
WITHIN_MIN_LAG, UNCLEANABLE, NOT_DIRTY_ENOUGH = "within_min_lag", "uncleanable", "not_dirty_enough"
TOMBSTONE_UNSTAMPED, TOMBSTONE_WAITING = "tombstone_unstamped", "tombstone_waiting"
HELD_BY_LEDGER, IS_DUE, UNKNOWN = "held_by_ledger", "due", "unknown"
_SEARCH_BYTES, _SEARCH_SECONDS = 512 << 20, 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Staying:
    """The reason's ``code``, a ``sentence``, the offset of the next record with the key (None: there is none,
    or it was not looked for), and the time in ms from which on another reason holds (None: not by time)."""

    code: str
    sentence: str
    superseded_at: int | None = None
    until_ms: int | None = None

    def to_json(self) -> dict[str, object]:
        """One object."""
        return {name: getattr(self, name) for name in Staying.__slots__}


def why_it_stays(
    topic: BrowsedTopic, log: ReadableLog, watched: WatchedLog, config: Config, offset: int, now_ms: int
) -> Staying:
    """Why the record at ``offset`` is still here. ``watched``: the log's row of the catalogue.

    Raises UsageError if there is no such record, and what reading raises.
    """
    reader = LogReader(log, offset, end=offset + 1)
    reader.control_records = True
    polled = reader.poll() if log.log_start_offset <= offset < log.high_watermark else None
    if polled is None:
        reason = f"partition {log.topic_partition.partition} has no record at offset {offset}"
        raise UsageError(reason, advice="it is not written yet, or a cleaning or retention has removed it")
    batch, key, value = polled.batches[:1], polled.columns.key(0), polled.columns.value(0)
    cleanable = None if watched.snapshot is None else watched.snapshot.range
    if cleanable is None or "compact" not in config.policies:
        return _of_deletion(config)
    if int(batch["attributes"][0]) & CONTROL_BIT:
        sentence = "A marker: it goes after its delete horizon, when no record of its transaction is left."
        return Staying(code=MARKER_NEEDED, sentence=sentence, until_ms=_horizon(batch))
    if key is None:
        sentence = "It has no key: the next cleaning of this part of the log removes it."
        return Staying(code=KEYLESS, sentence=sentence)
    later, is_searched = _later(topic, log, key, offset)
    if later is None and not is_searched:
        return Staying(code=UNKNOWN, sentence="The log is too long to look for a later record here.")
    if later is not None:
        return _of_superseded(log, watched, cleanable, later, offset)
    if value is not None:
        return Staying(code=NEWEST, sentence="It is the last record of its key: it stays.")
    return _of_tombstone(log, watched, cleanable, batch, offset, now_ms)


def _later(topic: BrowsedTopic, log: ReadableLog, key: bytes, offset: int) -> tuple[int | None, bool]:
    """(The offset of the next committed record with the key, whether the search came to the end)."""
    query = RecordQuery(
        partitions=(log.topic_partition.partition,),
        start_offset=offset + 1,
        key=key,
        newest_first=False,
        isolation=READ_COMMITTED,
        limit=1,
    )
    page = browse(topic, query, budget=Budget(_SEARCH_BYTES, _SEARCH_SECONDS))
    if page.records:
        return page.records[0].offset, True
    return None, page.cursor is None


def _of_deletion(config: Config) -> Staying:
    times = {
        "retention.ms": config.integer("retention.ms"),
        "retention.bytes": config.integer("retention.bytes"),
    }
    limits = [f"{name}={value}" for name, value in times.items() if value >= 0]
    bound = " or ".join(limits) if limits else "no limit: it stays"
    return Staying(
        code=POLICY_DELETE, sentence=f"The topic is not compacted: it goes with its segment, by {bound}."
    )


def _of_superseded(
    log: ReadableLog, watched: WatchedLog, cleanable: CleanableRange, later: int, offset: int
) -> Staying:
    """A record that offset ``later`` supersedes."""
    view, newer = log.view, f"The record at offset {later} supersedes it"
    active = view.segments[-1].base_offset
    if later >= cleanable.end:
        if later >= active:
            what = (
                "that one is in the active segment" if offset < active else "both are in the active segment"
            )
            return Staying(code=ACTIVE_SEGMENT, sentence=f"{newer}, but {what}.", superseded_at=later)
        if later >= view.high_watermark:
            sentence = f"{newer}, but is not replicated yet (high watermark {view.high_watermark})."
            return Staying(code=ABOVE_WATERMARK, sentence=sentence, superseded_at=later)
        if view.last_stable_offset <= later or cleanable.end >= view.last_stable_offset:
            sentence = f"{newer}, but a transaction is open since offset {view.last_stable_offset}."
            return Staying(code=OPEN_TRANSACTION, sentence=sentence, superseded_at=later)
        sentence = f"{newer}, but is younger than min.compaction.lag.ms, or in a segment with such a record."
        return Staying(code=WITHIN_MIN_LAG, sentence=sentence, superseded_at=later)
    return _of_state(watched, newer, later)


def _of_state(watched: WatchedLog, beginning: str, later: int | None = None) -> Staying:
    """A record that the next cleaning of the log removes."""
    if watched.uncleanable is not None:
        since = time_text(watched.uncleanable.since_ms)
        sentence = f"{beginning}, but the cleaner skips the log since {since}: {watched.uncleanable.reason}."
        return Staying(code=UNCLEANABLE, sentence=sentence, superseded_at=later)
    if watched.state == DUE:
        sentence = f"{beginning}: the next cleaning, which is due, removes it."
        return Staying(code=IS_DUE, sentence=sentence, superseded_at=later)
    assert watched.snapshot is not None
    ratio = watched.snapshot.range.dirty_ratio
    needed = "" if watched.min_ratio is None else f", more than {watched.min_ratio.value} are needed"
    sentence = f"{beginning}, but only {ratio:.2f} of the log's bytes are dirty{needed}."
    return Staying(code=NOT_DIRTY_ENOUGH, sentence=sentence, superseded_at=later)


def _of_tombstone(
    log: ReadableLog,
    watched: WatchedLog,
    cleanable: CleanableRange,
    batch: BatchHeaders,
    offset: int,
    now_ms: int,
) -> Staying:
    """A tombstone without a later record of its key."""
    if offset >= cleaning_bounds(log.directory).tombstones_from:
        sentence = "A tombstone: it stays until compaction beside the originals has passed it."
        return Staying(code=HELD_BY_LEDGER, sentence=sentence)
    horizon = _horizon(batch)
    if horizon is None:
        sentence = "A tombstone: the next cleaning gives it a delete horizon, after which it goes."
        return Staying(code=TOMBSTONE_UNSTAMPED, sentence=sentence)
    if now_ms < horizon:
        sentence = f"A tombstone: it goes with the first cleaning after {time_text(horizon)}."
        return Staying(code=TOMBSTONE_WAITING, sentence=sentence, until_ms=horizon)
    if offset >= cleanable.end:
        return Staying(code=ACTIVE_SEGMENT, sentence="A tombstone in a segment that is not cleaned yet.")
    return _of_state(watched, f"A tombstone whose delete horizon was {time_text(horizon)}")


def _horizon(batch: BatchHeaders) -> int | None:
    """The delete horizon of a record's batch (KIP-534), None without one."""
    return int(batch["base_timestamp"][0]) if have_delete_horizons(batch)[0] else None
