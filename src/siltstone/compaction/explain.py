"""``siltstone explain``: what a cleaning of a log would do.

A log is planned as for a cleaning, and cleaned in a dry run that counts its records and keys on the way
(``statistics``). Retention is planned on what the dry run leaves. Nothing is locked or written. Beside a live
broker a log's files may disappear meanwhile. Then the log is ``failed``, with the reason, and another run may
succeed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from siltstone.base import files
from siltstone.base.config import LONG_MAX, Config, LogConfig, Setting, format_value
from siltstone.base.errors import CorruptFileError, EngineError, SiltstoneError, SourceChangedError
from siltstone.base.records.decode import decode_records
from siltstone.base.records.scan import scan_batches
from siltstone.compaction import report
from siltstone.compaction.engine import Engine, fits_one_task
from siltstone.compaction.inplace import ranges
from siltstone.compaction.inplace.cleaner import WHOLE_LOG_BYTES, fill_records_before, fill_result
from siltstone.compaction.inplace.expiry import (
    Expiry,
    expiry_without_cleaning,
    fill_expiry,
    find_expiry_or_note,
)
from siltstone.compaction.inplace.planning import (
    LogState,
    PlannedLog,
    PlanOptions,
    initial_result,
    log_facts,
    mismatched_topic_ids,
    plan_log,
)
from siltstone.compaction.report import CLEANING_REASONS, REASONS, LogFailure, LogResult, failure_of
from siltstone.compaction.staging import GroupReport, LogReport
from siltstone.compaction.statistics import Bins, KeyCount, LogStatistics, StatisticsOptions
from siltstone.compaction.work import HAS_KEYLESS_RECORDS, Extracted, LogWork
from siltstone.log.coordinator_records import describe_key
from siltstone.log.directory import Checkpoints
from siltstone.log.indexes import read_entries
from siltstone.log.lookup import BatchPosition, position_of_offset
from siltstone.log.names import HasTopicPartition, parse_partition, segment_file
from siltstone.log.producers import load_producers
from siltstone.log.segments import Segment, first_batch_timestamp, floor_segment_index, largest_timestamp

# The data of an explanation: the JSON of ``siltstone explain``, and the input of its page and tables.

WOULD_CLEAN = "would_clean"
COUNTED_REASONS = tuple(reason for reason in CLEANING_REASONS if reason != REASONS[report.MARKERS])
"""The reasons that the statistics have, too: all but markers, which only the rewrite knows."""
MASKED_KEY = "••••"


@dataclass(frozen=True, slots=True, kw_only=True)
class HotKey:
    """A key with many records: how many it has, how many are superseded, and the offset of the last one.

    ``key``: its text, masked without ``--show-keys``. ``key_size``: of the key in bytes; ``bytes``,
    ``superseded_bytes``: of the records.
    """

    key: str = MASKED_KEY
    key_size: int
    records: int
    bytes: int
    superseded: int
    superseded_bytes: int
    last_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupExplained:
    """A segment group: its offsets [base, end), the number of its segments, its bytes and records before and
    after the cleaning, and the records removed by reason."""

    base_offset: int
    end_offset: int
    segments: int
    bytes_before: int
    bytes_after: int
    records_before: int
    records_after: int
    removed: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """Bytes of records with timestamps up to ``at_ms``, and how many of these a cleaning at that time could
    have removed."""

    at_ms: int
    written_bytes: int
    reclaimable_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingTombstones:
    """Tombstones by delete horizon (ms): ``NOT_STAMPED`` before a cleaning gives them one,
    ``KEPT_BY_LEDGER`` if it has passed but the compacted ledger still needs them. Some may be superseded."""

    at_ms: int
    tombstones: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Frequency:
    """The number of keys (``keys``) that have from ``records_from`` to ``records_to`` records."""

    records_from: int
    records_to: int
    keys: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CleaningBound:
    """One of the offsets at and above which nothing may be cleaned; ``name``: what sets it. The least one
    applies."""

    name: str
    offset: int


@dataclass(slots=True, kw_only=True)
class KafkaExplained:
    """The passes of Kafka's cleaner over a log: how many keys its offset map holds with the buffer and load
    factor of the settings, how many passes that takes, and the buffer for one pass."""

    buffer_bytes: int
    load_factor: float
    map_keys: int
    passes: int
    buffer_bytes_for_one_pass: int


@dataclass(slots=True, kw_only=True)
class RangeExplained:
    """The cleanable range of a log, its bounds, and its dirty ratio; None where unknown. ``overdue_ms``: by
    how much its oldest dirty record exceeds ``max.compaction.lag.ms``, 0 if it does not; ``cleanable_bytes``:
    of the dirty section."""

    log_start_offset: int | None = None
    first_dirty_offset: int | None = None
    first_uncleanable_offset: int | None = None
    log_end_offset: int | None = None
    bounds: list[CleaningBound] = field(default_factory=list)
    dirty_ratio: float | None = None
    min_dirty_ratio: float | None = None
    overdue_ms: int = 0
    cleanable_bytes: int = 0


@dataclass(slots=True, kw_only=True)
class ExpiredExplained:
    """The effect of retention: whole segments, with their records (None: one is damaged) and the bytes
    of their ``.log`` files. Of a log that is cleaned, segments are counted as they are after the cleaning."""

    segments: int = 0
    records: int | None = 0
    bytes: int = 0


@dataclass(slots=True, kw_only=True)
class OutcomeExplained:
    """The effect of a cleaning, and of retention after it. ``records_before``, ``records_after``:
    of the whole log; ``records``: of the part below the first uncleanable offset, by kind, and how many stay
    (``after``). ``bytes_after``: of ``.log`` files; ``removed_bytes``, ``kept_bytes``: of uncompressed
    records that the cleaning discards and retains. None where not known."""

    bytes_after: int | None = None
    records_before: int | None = None
    records_after: int | None = None
    expired: ExpiredExplained = field(default_factory=ExpiredExplained)
    records: dict[str, int] = field(default_factory=dict)
    removed: dict[str, int] = field(default_factory=dict)
    removed_bytes: dict[str, int] = field(default_factory=dict)
    kept_bytes: int = 0
    groups: list[GroupExplained] = field(default_factory=list)
    tombstones_waiting: list[WaitingTombstones] = field(default_factory=list)
    reclaimable: list[Moment] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class KeysExplained:
    """A log's keys, and what Kafka would need for the dirty ones; None if the log was not read."""

    distinct_keys: int | None = None
    distinct_dirty_keys: int | None = None
    keys_by_records: list[Frequency] = field(default_factory=list)
    hottest_keys: list[HotKey] = field(default_factory=list)
    kafka: KafkaExplained | None = None


@dataclass(slots=True, kw_only=True)
class LogExplanation(HasTopicPartition):
    """The explanation of one log. ``bytes_before``: of its ``.log`` files.

    ``status``: would_clean, or why not (nothing_to_do, not_eligible, skipped, uncleanable, failed), with the
    ``reason``. A log that is not eligible is explained as if it were, unless retention alone changes it now.
    """

    topic: str
    partition: int
    directory: str
    status: str
    reason: str = ""
    segments: int = 0
    bytes_before: int = 0
    range: RangeExplained = field(default_factory=RangeExplained)
    outcome: OutcomeExplained = field(default_factory=OutcomeExplained)
    keys: KeysExplained = field(default_factory=KeysExplained)
    notes: list[str] = field(default_factory=list)
    settings: Mapping[str, Setting] = field(default_factory=dict)

    @property
    def bytes_after(self) -> int | None:
        """Bytes of ``.log`` files after the cleaning, None if they are not known."""
        return self.outcome.bytes_after

    @property
    def is_explained(self) -> bool:
        """Were the log's records read?"""
        return self.keys.distinct_keys is not None

    def to_json(self) -> dict[str, Any]:
        """A plain, flat dictionary for ``json``, settings as {key: {value, source}}."""
        flat: dict[str, Any] = msgspec.to_builtins(replace(self, settings={}))
        for part in ("range", "outcome", "keys"):
            flat |= flat.pop(part)
        flat["settings"] = {
            name: {"value": format_value(setting.value), "source": setting.source}
            for name, setting in self.settings.items()
        }
        return flat


@dataclass(slots=True, kw_only=True)
class Explanation:
    """The explanations of all logs as of ``now_ms``. ``passed_over``: (path, reason) of files and folders
    that are not logs. ``notes``: remarks for the user."""

    now_ms: int
    logs: list[LogExplanation] = field(default_factory=list)
    passed_over: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary for ``json``."""
        return {
            "now_ms": self.now_ms,
            "dry_run": True,
            "logs": [log.to_json() for log in self.logs],
            "passed_over": [{"path": path, "reason": reason} for path, reason in self.passed_over],
            "notes": self.notes,
        }


# The parts of an explanation: bounds, groups, times, keys.

TIME_BINS = 60
"""The bins of the plot of bytes over time."""
KEY_BYTES_SHOWN = 64
"""The most characters of a key's text, or bytes of a binary key, that are shown."""
_DECODED_KEY_MAX = 600
"""Characters of a decoded key: enough for a group, a topic and a partition."""


def statistics_options(work: LogWork, top: int) -> StatisticsOptions:
    """The options of counting in a log. The bins go from the first batch's timestamp to the largest one below
    the first uncleanable offset."""
    non_empty = [segment for segment in work.segments if segment.size]
    first = first_batch_timestamp(non_empty[0]) if non_empty else None
    last = max((largest_timestamp(segment) for segment in non_empty), default=work.rules.now_ms)
    start = last if first is None else min(first, last)
    bins = Bins(start_ms=start, width_ms=max(1, -(-(last - start + 1) // TIME_BINS)), bin_count=TIME_BINS)
    return StatisticsOptions(bins=bins, top=top)


def range_of(state: LogState, checkpoints: Checkpoints, plan_options: PlanOptions) -> RangeExplained:
    """The cleanable range, and its bounds by name."""
    assert state.config is not None
    segments = state.segments()
    if not segments:
        return RangeExplained()
    producers = load_producers(state.path, segments)
    high_watermark = checkpoints.high_watermark.get(state.topic_partition)
    config = LogConfig.of(state.config)
    committed_below = LONG_MAX if high_watermark is None else high_watermark
    facts = log_facts(state, config, checkpoints, segments, producers, committed_below)
    cleanable = ranges.cleanable_range(facts, config, plan_options.now_ms)
    bounds = {
        "active segment": segments[-1].base_offset,
        "high watermark": high_watermark,
        "open transaction": producers.first_open_transaction(),
    }
    known = {name: offset for name, offset in bounds.items() if offset is not None}
    if cleanable.end < min(known.values()) and config.min_compaction_lag_ms > 0:
        known["min.compaction.lag.ms"] = cleanable.end
    return RangeExplained(
        log_start_offset=facts.log_start_offset,
        first_dirty_offset=cleanable.first_dirty,
        first_uncleanable_offset=cleanable.end,
        log_end_offset=facts.log_end_offset,
        bounds=[
            CleaningBound(name=name, offset=offset)
            for name, offset in sorted(known.items(), key=itemgetter(1))
        ],
        dirty_ratio=cleanable.dirty_ratio,
        min_dirty_ratio=config.min_cleanable_dirty_ratio,
        overdue_ms=cleanable.overdue_ms,
        cleanable_bytes=cleanable.cleanable_bytes,
    )


def groups_of(work: LogWork, reports: Sequence[GroupReport]) -> list[GroupExplained]:
    """The segment groups before and after the dry run, by its ``reports`` on them."""
    return [
        GroupExplained(
            base_offset=work.groups[group_report.group_index].base_offset,
            end_offset=work.groups[group_report.group_index].end_offset,
            segments=len(work.sources(work.groups[group_report.group_index])),
            bytes_before=sum(segment.size for segment in work.sources(work.groups[group_report.group_index])),
            bytes_after=group_report.size,
            records_before=group_report.counts.records_read,
            records_after=group_report.counts.records_retained,
            removed={name: group_report.counts.discarded.counts[name] for name in CLEANING_REASONS},
        )
        for group_report in sorted(reports, key=attrgetter("group_index"))
    ]


def moments(bins: Bins, statistics: LogStatistics) -> list[Moment]:
    """Running sums at the end of each bin. The last one has all bytes that a cleaning removes now, also those
    whose reason has no bin of time, such as a passed delete horizon."""
    numbers = range(bins.bin_count)
    written = np.cumsum([statistics.written.get(number, 0) for number in numbers])
    sums = (statistics.superseded, statistics.discarded_written)
    reclaimable = np.cumsum([sum(part.get(number, 0) for part in sums) for number in numbers])
    reclaimable[-1:] = sum(statistics.discarded_sizes.values())  # the last item, if there are bins
    return [
        Moment(
            at_ms=bins.start_ms + (number + 1) * bins.width_ms - 1,
            written_bytes=int(written[number]),
            reclaimable_bytes=int(reclaimable[number]),
        )
        for number in numbers
    ]


def frequencies(statistics: LogStatistics) -> list[Frequency]:
    """How many keys have 1, 2, 3–4, 5–8, … records."""
    return [
        Frequency(records_from=(1 << step >> 1) + 1, records_to=1 << step, keys=keys)
        for step, keys in sorted(statistics.frequencies.items())
    ]


def hot_key(work: LogWork, count: KeyCount, *, show_key: bool) -> HotKey:
    """A hot key, which is read from its last record. Raises CorruptFileError, OSError."""
    key = read_key(work, count.last_offset)
    return HotKey(
        key=key_text(work.name, key) if show_key else MASKED_KEY,
        key_size=0 if key is None else len(key),
        records=count.records,
        bytes=count.bytes,
        superseded=count.superseded,
        superseded_bytes=count.superseded_bytes,
        last_offset=count.last_offset,
    )


def read_key(work: LogWork, offset: int) -> bytes | None:
    """The key of the record at ``offset``, None if the record is not there. Raises CorruptFileError,
    OSError."""
    segment = work.segments[floor_segment_index(list(work.segments), offset)]
    with files.Reader(segment.path) as reader:
        place = _find_batch(reader, segment, offset)
        if place is None:
            return None
        window = np.empty(place.size, np.uint8)
        reader.read_into(window, place.position)
    columns = decode_records(
        window,
        scan_batches(window).batches,
        limit=work.limits.batch_limit,
        path=segment.path,
        origin=place.position,
    )
    rows = np.flatnonzero(columns.offset == offset)
    return columns.key(int(rows[0])) if len(rows) else None


def _find_batch(reader: files.Reader, segment: Segment, offset: int) -> BatchPosition | None:
    """The batch with ``offset``, by the offset index; by all headers where that is missing or wrong. None
    without such a batch. Raises CorruptFileError, OSError."""
    with contextlib.suppress(OSError, CorruptFileError):
        path = Path(segment.directory) / segment_file(segment.base_offset, "index")
        entries = read_entries(files.read_bytes(path), "index", str(path))
        row = int(np.searchsorted(entries["relative_offset"], offset - segment.base_offset, side="right"))
        start = int(entries["position"][row - 1]) if row else 0
        batch = position_of_offset(reader, offset, start=start, end=segment.size)
        if batch is not None and batch.base_offset <= offset:
            return batch
    return position_of_offset(reader, offset, end=segment.size)


def key_text(name: str, key: bytes | None) -> str:
    """A key of log ``name`` as text to show: decoded (of a coordinator's topic), its own text, or hexadecimal
    digits. Long ones are cut; the text of no key is empty."""
    if key is None:
        return ""
    if not key:
        return '""'
    log = parse_partition(name)
    decoded = None if log is None else describe_key(log.topic, key)
    if decoded is not None and decoded.isprintable():
        return decoded[:_DECODED_KEY_MAX]
    try:
        text = key.decode()
    except UnicodeDecodeError:
        text = ""
    if text.isprintable() and text:
        return text[:KEY_BYTES_SHOWN] + ("…" if len(text) > KEY_BYTES_SHOWN else "")
    return f"0x{key[:KEY_BYTES_SHOWN].hex()}{'…' if len(key) > KEY_BYTES_SHOWN else ''}"


HOTTEST_KEYS_DEFAULT = 10
"""The default number of hottest keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainOptions:
    """The options of an explanation. ``show_keys``: show the hottest keys, not a mask in their place;
    ``top``: how many hottest keys there are."""

    plan_options: PlanOptions
    show_keys: bool = False
    top: int = HOTTEST_KEYS_DEFAULT


def explain_logs(
    states: Sequence[LogState],
    options: ExplainOptions,
    engine: Callable[[], Engine],
) -> list[LogExplanation]:
    """The explanations of logs, in order. ``engine`` is called for an engine if a log has to be read.

    Raises EngineError when Spark fails. What is wrong with one log is said in its explanation.
    """
    mismatched = mismatched_topic_ids(states)
    logs = [_plan_explanation(state, options, mismatched.get(state.topic_partition)) for state in states]
    by_name = {planned.work.name: (log, planned) for log, planned in logs if planned is not None}
    if by_name:
        log_reports = _dry_run([planned.work for _, planned in by_name.values()], engine())
        for name, (log, planned) in by_name.items():
            _complete_explanation(log, planned, log_reports[name], options)
    return [log for log, _ in logs]


def _dry_run(works: Sequence[LogWork], engine: Engine) -> dict[str, LogReport]:
    """The dry run: small logs each in one task, large ones on all workers. Reports by the log's name."""
    small = [work for work in works if fits_one_task(work, WHOLE_LOG_BYTES)]
    log_reports = {log_report.name: log_report for log_report in engine.clean_whole(small)} if small else {}
    for work in works:
        if work.name not in log_reports:
            log_reports[work.name] = _dry_run_distributed(work, engine)
    return log_reports


def _dry_run_distributed(work: LogWork, engine: Engine) -> LogReport:
    """The dry run of a large log. A failed job is the log's failure. Raises an EngineError without a cause:
    it concerns all logs, since the engine could not be started or is lost."""
    try:
        return engine.clean_distributed(work)
    except EngineError as error:
        if error.__cause__ is None:
            raise
        return LogReport(name=work.name, extracted=Extracted(failure=failure_of(error)))


def _plan_explanation(
    state: LogState, options: ExplainOptions, mismatch: str | None
) -> tuple[LogExplanation, PlannedLog | None]:
    """Plan a log twice: as a cleaning now would, for its status, and as if it were eligible and could lose
    keyless records, for the dry run. Returns (the explanation so far, the second plan, None if the dry run
    leaves the log out). ``mismatch``: why its topic id excludes the log, None if it does not."""
    log = LogExplanation(
        topic=state.topic_partition.topic,
        partition=state.topic_partition.partition,
        directory=str(state.path),
        status=report.SKIPPED,
        settings={} if state.config is None else state.config.settings(),
    )
    try:
        if mismatch is not None:
            _copy_plan_result(
                log, initial_result(state, state.segments()).set_status(report.SKIPPED, mismatch)
            )
            return log, None
        checkpoints, plan_options = state.checkpoints(), options.plan_options
        plan = plan_log(state, checkpoints, plan_options, None)
        expiry = None
        if isinstance(plan, LogResult):
            expiry = expiry_without_cleaning(state, plan, plan_options)
        _copy_plan_result(log, plan)
        if log.status == report.SKIPPED:
            log.outcome.expired = _expired(expiry)
            return log, None
        forced_plan = (
            plan
            if isinstance(plan, PlannedLog)
            else plan_log(state, checkpoints, replace(plan_options, force=True), None)
        )
        log.range = range_of(state, checkpoints, plan_options)
        if expiry is not None and isinstance(plan, LogResult):  # only retention changes the log now
            _copy_outcome(log, plan, expiry)
            return log, None
        if not isinstance(forced_plan, PlannedLog):
            return log, None
        work = forced_plan.work
        rules, counted = replace(work.rules, drop_keyless=True), statistics_options(work, options.top)
        forced_plan.work = replace(work, rules=rules, statistics=counted)
        return log, forced_plan
    except (SiltstoneError, OSError) as error:
        failure = failure_of(error)
        log.status, log.reason = failure.status, failure.reason
        return log, None


def _expired(expiry: Expiry | None) -> ExpiredExplained:
    if expiry is None:
        return ExpiredExplained()
    return ExpiredExplained(
        segments=len(expiry.segments),
        records=expiry.records,
        bytes=sum(segment.size for segment in expiry.segments),
    )


def _copy_outcome(log: LogExplanation, result: LogResult, expiry: Expiry | None) -> None:
    """Copy to the explanation what a cleaning and retention leave of the whole log."""
    log.outcome.bytes_after = result.bytes_after
    log.outcome.records_before, log.outcome.records_after = result.records_before, result.records_after
    log.outcome.expired = _expired(expiry)


def _copy_plan_result(log: LogExplanation, plan: PlannedLog | LogResult) -> None:
    """Copy to the explanation what a plan says of the log now: status, sizes, notes."""
    result = plan.result if isinstance(plan, PlannedLog) else plan
    # A result is ``cleaned`` if retention alone changes the log.
    would_clean = isinstance(plan, PlannedLog) or result.status == report.CLEANED
    log.status = WOULD_CLEAN if would_clean else result.status
    log.segments, log.bytes_before = result.segments_before, result.bytes_before
    log.reason, log.notes = result.reason, list(result.notes)


def _complete_explanation(
    log: LogExplanation, planned: PlannedLog, log_report: LogReport, options: ExplainOptions
) -> None:
    """Complete the explanation of a log with the report on its dry run."""
    state, statistics = planned.state, log_report.extracted.statistics or LogStatistics()
    assert state.config is not None
    failure = log_report.failure
    if failure is None:
        log.outcome = _outcome(log.bytes_before, planned.work, log_report, statistics)
        log.keys = KeysExplained(
            distinct_keys=statistics.counts["keys"],
            distinct_dirty_keys=statistics.counts["dirty_keys"],
            keys_by_records=frequencies(statistics),
        )
        failure = _disagreement(log, statistics)
    if failure is not None:
        log.status, log.reason = failure.status, failure.reason
        return
    keyless = log.outcome.records["keyless"]
    if keyless and not (options.plan_options.drop_keyless or state.drop_keyless):
        log.status, log.reason = report.SKIPPED, HAS_KEYLESS_RECORDS.format(count=keyless)
    try:
        _complete_with_retention(log, planned, log_report, options.plan_options)
    except (SiltstoneError, OSError) as error:
        failure = failure_of(error)
        log.status, log.reason = failure.status, failure.reason
        return
    log.keys.kafka = kafka_needs(state.config, statistics.counts["dirty_keys"])
    log.outcome.tombstones_waiting = [
        WaitingTombstones(at_ms=horizon, tombstones=count, bytes=statistics.waiting_sizes[horizon])
        for horizon, count in sorted(statistics.waiting.items())
    ]
    assert planned.work.statistics is not None
    log.outcome.reclaimable = moments(planned.work.statistics.bins, statistics)
    try:
        log.keys.hottest_keys = [
            hot_key(planned.work, count, show_key=options.show_keys)
            for count in statistics.hottest_keys(options.top)
        ]
    except (SiltstoneError, OSError) as error:
        log.notes.append(f"the hottest keys could not be read: {failure_of(error).reason}")


def _complete_with_retention(
    log: LogExplanation, planned: PlannedLog, log_report: LogReport, options: PlanOptions
) -> None:
    """Count the whole log's records before and after the cleaning, and after retention where it applies.
    Raises SiltstoneError, OSError."""
    result, notes_before = planned.result, len(planned.result.notes)
    planned.committed = sorted(log_report.groups, key=attrgetter("group_index"))
    fill_records_before(planned, log_report)
    fill_result(planned, log_report)
    expiry = None
    if log.status == WOULD_CLEAN:
        expiry = find_expiry_or_note(planned.state, result, options, planned)
        if expiry is not None:
            fill_expiry(result, expiry)
    _copy_outcome(log, result, expiry)
    log.notes += result.notes[notes_before:]


def _outcome(
    bytes_before: int, work: LogWork, log_report: LogReport, statistics: LogStatistics
) -> OutcomeExplained:
    """The effect of the cleaning, by the dry run's report and its statistics. ``bytes_before``: the log's."""
    counts = report.RecordCounts()
    for group in log_report.groups:
        counts.add(group.counts)
    removed = {reason: counts.discarded.counts[reason] for reason in CLEANING_REASONS}
    # Only the rewrite knows which markers are discarded, and it counts no bytes: each counts as an average
    # control record.
    marker_bytes = statistics.sizes["control"] // max(statistics.counts["control"], 1)
    removed_bytes = {reason: statistics.discarded_sizes[reason] for reason in COUNTED_REASONS}
    removed_bytes[REASONS[report.MARKERS]] = removed[REASONS[report.MARKERS]] * marker_bytes
    kinds = {
        "keyless": statistics.discarded["keyless"],
        "aborted": statistics.discarded["aborted"],
        "control": statistics.counts["control"],
    }
    total = statistics.counts["records"]
    return OutcomeExplained(
        bytes_after=bytes_before - work.size + sum(group.size for group in log_report.groups),
        records={
            "total": total,
            "keyed": total - sum(kinds.values()),
            **kinds,
            "tombstones": statistics.counts["tombstones"],
            "after": total - sum(removed.values()),
        },
        removed=removed,
        removed_bytes=removed_bytes,
        kept_bytes=statistics.sizes["records"] - sum(removed_bytes.values()),
        groups=groups_of(work, log_report.groups),
    )


def _disagreement(log: LogExplanation, statistics: LogStatistics) -> LogFailure | None:
    """The failure if the rewrite and the statistics count differently, since the log changed between the two
    readings of a dry run; None if they agree."""
    for reason in COUNTED_REASONS:
        removed, count = log.outcome.removed[reason], statistics.discarded[reason]
        if removed != count:
            error = SourceChangedError(
                f"the log changed while it was read: the dry run removes {removed} {reason} records, but "
                f"{count} were counted",
                path=log.directory,
                advice="run explain again",
            )
            return failure_of(error)
    return None


def kafka_needs(config: Config, dirty_keys: int) -> KafkaExplained:
    """Kafka's offset map with these settings, and how many passes ``dirty_keys`` distinct keys take, at
    least."""
    buffer = config.integer("log.cleaner.dedupe.buffer.size")
    load = config.number("log.cleaner.io.buffer.load.factor")
    map_keys = ranges.kafka_map_keys(config)
    return KafkaExplained(
        buffer_bytes=buffer,
        load_factor=load,
        map_keys=map_keys,
        passes=ranges.kafka_passes(dirty_keys, map_keys),
        buffer_bytes_for_one_pass=ranges.kafka_buffer_bytes_for_keys(dirty_keys, load),
    )
