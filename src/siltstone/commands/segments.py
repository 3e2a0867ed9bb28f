"""Describes the segments of a partition for display: sizes, times, and in which section of the log each is.

::

    log start      first dirty (cleaner checkpoint)   first uncleanable   high watermark   end
        │▓▓▓▓▓▓▓▓│▓▓▓▓▓│▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒│▒▒▒▒▒▒▒▒▒▒▒│░░░░░░░░░░│───────────────│
        └─── clean ────┘└────────── dirty ─────────┘uncleanable└── active ──┘

The sections are those of ``compaction.inplace.ranges``, as the catalogue has them: an open log and one that
is only read are shown alike.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from siltstone.base import files
from siltstone.base.clock import duration_text
from siltstone.base.config import Config
from siltstone.base.errors import SiltstoneError
from siltstone.commands.cleaning_conditions import ACTIVE_SEGMENT, CleaningConditions, ratio_sentence
from siltstone.commands.counting import SegmentCounter, SegmentCounts
from siltstone.commands.explain_page import counted
from siltstone.commands.watch import (
    CHANGING,
    CLEANING,
    DIRTY,
    DUE,
    TOMBSTONES,
    UNCLEANABLE,
    UNREADABLE,
    WatchedLog,
)
from siltstone.compaction.inplace.ranges import CleanableRange, missing_bytes
from siltstone.log.fetch import LogView
from siltstone.log.ledger.store import LedgerStore
from siltstone.log.names import parse_segment_file, segment_file
from siltstone.log.read_only import ReadableLog
from siltstone.log.segment import LiveSegment

CLEAN, NOT_CLEANABLE_YET, ACTIVE, CLOSED = "clean", "uncleanable", "active", "closed"
SECTIONS = (CLEAN, DIRTY, NOT_CLEANABLE_YET, ACTIVE, CLOSED)
"""clean: each key has one record; dirty: a cleaning reads it; uncleanable: held back for now; active: appends
go there; closed: of a log that is not compacted."""
COUNT_BYTES = 64 << 20
"""Bytes of segments whose headers are read for one request at most; the next request reads more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentRow:
    """One segment. ``end_offset``: the base offset of the next one, or the log's end. Sizes in bytes; times
    are None where the segment has none.

    ``records``: that are stored, markers too; ``codecs``: of its batches; ``newest_horizon_ms``: the latest
    delete horizon. These come from its batch headers: None, or (), if it was not counted.
    """

    base_offset: int
    end_offset: int
    size: int
    section: str
    first_timestamp_ms: int | None
    largest_timestamp_ms: int | None
    modified_ms: int
    offset_index_bytes: int
    time_index_bytes: int
    records: int | None = None
    codecs: tuple[str, ...] = ()
    newest_horizon_ms: int | None = None

    @property
    def spanned(self) -> int:
        """How many offsets it spans."""
        return self.end_offset - self.base_offset

    @property
    def share_left(self) -> float | None:
        """Records divided by offsets: how much cleanings have left; None if it is not known."""
        return None if self.records is None or not self.spanned else self.records / self.spanned

    def to_json(self) -> dict[str, object]:
        """One object."""
        document = {name: getattr(self, name) for name in SegmentRow.__slots__}
        share = self.share_left
        return {
            **document,
            "codecs": list(self.codecs),
            "spanned": self.spanned,
            "share_left": None if share is None else round(share, 6),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """Offsets that matter in a log; None where there is none."""

    log_start: int
    cleaner_checkpoint: int | None
    first_uncleanable: int | None
    high_watermark: int
    last_stable: int
    log_end: int
    compacted_horizon: int | None

    def to_json(self) -> dict[str, object]:
        """One object."""
        return {name: getattr(self, name) for name in Marks.__slots__}


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSegments:
    """A partition's segments, its marks, and one sentence on its cleaning. ``leftovers``: files of a swap or
    a deletion that has not ended (``.swap``, ``.cleaned``, ``.deleted``), by name with their bytes."""

    topic: str
    partition: int
    directory: str
    state: str
    sentence: str
    segments: Sequence[SegmentRow]
    marks: Marks
    leftovers: Sequence[tuple[str, int]]

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return sum(segment.size for segment in self.segments)

    @property
    def ghosts(self) -> Sequence[tuple[int, str, int]]:
        """(Base offset, suffix, bytes) of each ``.log`` among the leftovers: the drawing shows them with
        dashed lines."""
        parsed = [(parse_segment_file(name), size) for name, size in self.leftovers]
        return [
            (name.base_offset, name.suffix, size)
            for name, size in parsed
            if name is not None and name.kind == "log"
        ]

    @property
    def newest_horizon_ms(self) -> int | None:
        """The latest delete horizon of its segments, None without one or if they were not counted."""
        horizons = [segment.newest_horizon_ms for segment in self.segments]
        return max((horizon for horizon in horizons if horizon is not None), default=None)

    def to_json(self) -> dict[str, object]:
        """One object."""
        return {
            "topic": self.topic,
            "partition": self.partition,
            "directory": self.directory,
            "state": self.state,
            "sentence": self.sentence,
            "segments": [segment.to_json() for segment in self.segments],
            "marks": self.marks.to_json(),
            "leftovers": [{"name": name, "bytes": size} for name, size in self.leftovers],
        }


def segments_of(
    log: ReadableLog,
    watched: WatchedLog,
    config: Config | None,
    *,
    times: bool = True,
    counter: SegmentCounter | None = None,
    count_bytes_max: int = COUNT_BYTES,
    conditions: CleaningConditions | None = None,
) -> PartitionSegments:
    """The segments of a log. ``watched``: its row of the catalogue, which may be a little older; ``config``:
    None if the settings are not known; ``times``: read each segment's times; ``counter``: read the headers of
    segments that it has not counted yet, at most ``count_bytes_max`` bytes of them; ``conditions``: for a
    sentence that says what holds records back. Raises OSError."""
    view = log.view
    counts = (
        [None] * len(view.segments) if counter is None else counter.counts_of(log, bytes_max=count_bytes_max)
    )
    cleanable = None if watched.snapshot is None else watched.snapshot.range
    listed: dict[str, files.FileStat] = {}
    with contextlib.suppress(OSError):  # the directory may be renamed or deleted meanwhile
        listed = files.list_files(log.directory)
    ends = [*(segment.base_offset for segment in view.segments[1:]), view.log_end_offset]
    return PartitionSegments(
        topic=log.topic_partition.topic,
        partition=log.topic_partition.partition,
        directory=str(log.directory),
        state=watched.state,
        sentence=sentence_of(watched, config, conditions),
        segments=[
            _with_counts(
                _segment_row(
                    segment, end, view.size_of(number), _section(view, number, cleanable), listed, times
                ),
                counts[number],
            )
            for number, (segment, end) in enumerate(zip(view.segments, ends, strict=True))
        ],
        marks=_marks(log, watched),
        leftovers=[
            (name, status.size)
            for name, status in sorted(listed.items())
            if name.endswith((".swap", ".cleaned", ".deleted"))
        ],
    )


def _marks(log: ReadableLog, watched: WatchedLog) -> Marks:
    view = log.view
    cleanable = None if watched.snapshot is None else watched.snapshot.range
    return Marks(
        log_start=view.log_start_offset,
        cleaner_checkpoint=watched.checkpoint,
        first_uncleanable=None if cleanable is None else cleanable.end,
        high_watermark=view.high_watermark,
        last_stable=view.last_stable_offset,
        log_end=view.log_end_offset,
        compacted_horizon=_compacted_horizon(log),
    )


def _segment_row(
    segment: LiveSegment, end: int, size: int, section: str, listed: Mapping[str, files.FileStat], times: bool
) -> SegmentRow:
    first, largest = _times(segment) if times else (None, None)

    def size_of(kind: str) -> int:
        status = listed.get(segment_file(segment.base_offset, kind))
        return 0 if status is None else status.size

    return SegmentRow(
        base_offset=segment.base_offset,
        end_offset=end,
        size=size,
        section=section,
        first_timestamp_ms=first,
        largest_timestamp_ms=largest,
        modified_ms=segment.modified_ms,
        offset_index_bytes=size_of("index"),
        time_index_bytes=size_of("timeindex"),
    )


def _with_counts(row: SegmentRow, counts: SegmentCounts | None) -> SegmentRow:
    if counts is None:
        return row
    return replace(
        row, records=counts.records, codecs=counts.codecs, newest_horizon_ms=counts.newest_horizon_ms
    )


def _section(view: LogView, number: int, cleanable: CleanableRange | None) -> str:
    """The section of segment ``number``. ``cleanable``: None if the log is not compacted, or was not read."""
    if number + 1 == len(view.segments):
        return ACTIVE
    if cleanable is None:
        return CLOSED
    base_offset = view.segments[number].base_offset
    if base_offset >= cleanable.end:
        return NOT_CLEANABLE_YET
    return CLEAN if base_offset < cleanable.first_dirty else DIRTY


def _times(segment: LiveSegment) -> tuple[int | None, int | None]:
    """The first and the largest timestamp of a segment; None where it has none or cannot be read now."""
    with contextlib.suppress(SiltstoneError, OSError):
        first, largest = segment.first_timestamp(), segment.largest_timestamp
        return (first if first >= 0 else None), (largest if largest >= 0 else None)
    return None, None


def _compacted_horizon(log: ReadableLog) -> int | None:
    with contextlib.suppress(SiltstoneError, OSError):
        ledger = LedgerStore(log.directory).current()
        return None if ledger is None else ledger.horizon
    return None


def sentence_of(
    watched: WatchedLog, config: Config | None, conditions: CleaningConditions | None = None
) -> str:
    """One sentence: what becomes of the log, or why it is not cleaned. ``conditions``: what holds records
    back."""
    snapshot, reason = watched.snapshot, watched.reason
    if watched.state == UNCLEANABLE:
        return f"The cleaner skips it: {reason}."
    if watched.state == UNREADABLE:
        return f"It cannot be read: {reason}."
    if watched.state == CHANGING:
        return "Its files changed while they were read; they are read again" + (
            f" ({reason})." if reason else "."
        )
    if watched.state == CLEANING:
        return f"It is being cleaned: {reason}." if reason else "It is being cleaned."
    if conditions is not None and conditions.is_paused:
        return "It is not cleaned: its cleaning is paused."
    if snapshot is None:
        return f"It is not cleaned: {reason}." if reason else "It is not cleaned."
    bounds = snapshot.range
    if watched.state == DUE:
        return "It is due: the next round of the cleaner takes it" + (f" ({reason})." if reason else ".")
    if watched.state == TOMBSTONES:
        waits = (
            f"Nothing is dirty; tombstones (deletions) wait: {reason}. A cleaning after that removes them."
        )
        return f"{waits}{_active_sentence(conditions)}"
    if watched.state == DIRTY:
        if conditions is not None and conditions.log_config.compacts:
            return f"Not cleaned: {ratio_sentence(conditions)}."
        return _dirty_sentence(watched, config)
    if bounds.end > bounds.first_dirty:
        return "Nothing to clean."
    # The active segment is always held back, and so last.
    blocker = conditions.blocker_of(bounds.end) if conditions is not None else None
    if blocker is not None and blocker.code != ACTIVE_SEGMENT:
        return (
            f"Nothing to clean: from offset {blocker.offset} on records are held back ({blocker.sentence})."
        )
    return f"Nothing to clean: all closed segments are clean, or held back.{_active_sentence(conditions)}"


def _active_sentence(conditions: CleaningConditions | None) -> str:
    """When the newest records may be cleaned; empty if there are none, or if it is not known."""
    if conditions is None or not conditions.log.view.active_size:
        return ""
    # The first blocker is that of the active segment.
    held = conditions.blockers[0].sentence.replace("it is", "What is newer is", 1)
    ratio = conditions.log_config.min_cleanable_dirty_ratio
    return f" {held}. Then it is dirty, and cleaned once the dirty ratio is over {ratio:.2f}."


def _dirty_sentence(watched: WatchedLog, config: Config | None) -> str:
    assert watched.snapshot is not None
    bounds = watched.snapshot.range
    ratio = watched.min_ratio.value if watched.min_ratio is not None else None
    if not isinstance(ratio, (int, float)):
        return f"Not cleaned: {bounds.dirty_ratio:.2f} of the bytes are dirty."
    text = f"Not cleaned: {bounds.dirty_ratio:.2f} of the bytes are dirty, more than {ratio:.2f} are needed"
    missing = missing_bytes(bounds, ratio)
    if missing is not None:
        text += f": {counted(missing, 'byte')} more"
    lag_ms = None if config is None else config.integer("max.compaction.lag.ms")
    if lag_ms is not None and lag_ms < 1 << 62:  # Kafka's default, which means no limit, is 2⁶³ - 1
        text += f", or when a record is older than {duration_text(lag_ms / 1000)} (max.compaction.lag.ms)"
    return f"{text}."
