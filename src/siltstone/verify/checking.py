"""Runs the check of a cleaning: compares spans, checks keys by bucket, and concludes for each log.

``verify`` is the whole; a ``Checker`` runs the spans and buckets: ``check_here`` in this process, or
``spark.verify`` in tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from siltstone.base import files
from siltstone.base.config import LONG_MAX
from siltstone.base.errors import CorruptFileError, SourceChangedError
from siltstone.base.records.layout import Flags, Int64, Words
from siltstone.log.indexes import Entries, IndexBuilder, read_entries
from siltstone.log.lookup import batch_headers
from siltstone.log.names import TopicPartition, segment_file
from siltstone.log.segments import Segment
from siltstone.log.transactions import transaction_indexes
from siltstone.verify.comparing import AfterStream, Comparison, read_before
from siltstone.verify.findings import REASONS, Findings, LogVerdict, Verdict
from siltstone.verify.keys import CHECK_BYTES, ENTRY_BYTES, bucket_of, check_bucket
from siltstone.verify.pairs import CleaningSettings, LogPair, Span, open_sides, pair_of, spans_of
from siltstone.verify.transactions import (
    AbortedIndex,
    SpanTransactions,
    check_entries,
    check_unresolved_markers,
)

BUCKET_BYTES = 512 << 20
"""Bytes of memory that the check of one bucket may take, about."""
_BLOB_ENTRIES = (16 << 20) // ENTRY_BYTES
_MAX_HORIZONS = 10


@dataclass(slots=True, kw_only=True)
class SpanReport:
    """The result of one span; ``horizons``: some of the delete horizons (ms) that AFTER has and BEFORE has
    not."""

    number: int
    findings: Findings = field(default_factory=Findings)
    transactions: SpanTransactions = field(default_factory=SpanTransactions)
    horizons: set[int] = field(default_factory=set)


Checked = dict[str, tuple[list[SpanReport], Findings]]
"""By a log's name: the reports of its spans, in any order, and the findings of all its buckets."""
Checker = Callable[[Sequence[LogPair]], Checked]
"""Runs all spans and buckets of some logs."""


def verify(
    before: Sequence[Path],
    after: Sequence[Path],
    checker: Checker,
    settings_of: Callable[[TopicPartition], CleaningSettings],
    topics: Sequence[str] = (),
) -> Verdict:
    """Check every log of ``after`` against ``before``; ``checker`` runs the parts.

    Both are all log directories of a broker, in any order. Raises UsageError, NotALogDirectoryError,
    DirectoryRefusedError, CorruptFileError (a checkpoint), EngineError, OSError; what is
    wrong with a log is in its verdict.
    """
    old, new, notes = open_sides(before, after, topics)
    logs = {partition: Findings() for partition in sorted({*old, *new})}
    pairs: dict[TopicPartition, LogPair] = {}
    for partition, findings in logs.items():
        with findings.noting("before_damaged"):
            before_log, after_log = old.get(partition), new.get(partition)
            pair = pair_of(partition, before_log, after_log, settings_of(partition), findings)
            if pair is not None:
                pairs[partition] = pair
    checked = checker(list(pairs.values()))
    for partition, pair in pairs.items():
        with logs[partition].noting("aborted_entry"):
            _conclude(pair, *checked[pair.name], logs[partition])
    verdicts = [_verdict(partition, pairs.get(partition), findings) for partition, findings in logs.items()]
    return Verdict(logs=verdicts, notes=notes)


def _verdict(partition: TopicPartition, pair: LogPair | None, findings: Findings) -> LogVerdict:
    counts = findings.counts
    return LogVerdict(
        topic=partition.topic,
        partition=partition.partition,
        first_dirty_offset=None if pair is None else pair.first_dirty,
        cleaned_end_offset=None if pair is None else pair.cleaned_end,
        records_before=counts["before"],
        records_after=counts["after"],
        distinct_keys=counts["keys"],
        removed={reason: counts[reason] for reason in REASONS},
        problems=findings.problems,
        found=dict(findings.found),
        notes=findings.notes,
    )


def bucket_count(pair: LogPair, at_least: int = 1) -> int:
    """The number of buckets of which each takes about ``BUCKET_BYTES``; the span of offsets bounds the
    records."""
    span = max(pair.cleaned_end - pair.before[0].base_offset, 0)
    return max(at_least, -(-span * CHECK_BYTES // BUCKET_BYTES))


def check_here(pairs: Sequence[LogPair]) -> Checked:
    """One log after another, in this process. Memory: 24 bytes a record with a key, and a bucket's."""
    checked: Checked = {}
    for pair in pairs:
        buckets, blobs = bucket_count(pair), dict[int, list[Words]]()
        reports, key_findings = checked[pair.name] = [], Findings()
        for span in spans_of(pair):
            report = SpanReport(number=span.number)
            for bucket, entries in check_span(pair, span, buckets, report):
                blobs.setdefault(bucket, []).append(entries)
            reports.append(report)
        for bucket in sorted(blobs):
            key_findings.merge(
                check_bucket(blobs.pop(bucket), first_dirty=pair.first_dirty, was_cleaned=pair.was_cleaned)
            )
    return checked


# One span of a log: the segments of BEFORE are read side by side with the segment of AFTER.


def check_span(pair: LogPair, span: Span, buckets: int, report: SpanReport) -> Iterator[tuple[int, Words]]:
    """Fill ``report``; yields (bucket, entries), 16 MiB each at most. Raises nothing for what is in files."""
    pending, pending_count = list[Words](), 0
    try:
        for entries in _compare(pair, span, report):
            pending.append(entries)
            pending_count += len(entries)
            if pending_count >= _BLOB_ENTRIES * max(1, min(buckets, 4)):
                yield from _by_bucket(pending, buckets)
                pending, pending_count = [], 0
        yield from _by_bucket(pending, buckets)
    except (SourceChangedError, OSError) as error:
        report.findings.complete = False
        report.findings.add("before_damaged", str(error))
    if span.after is not None and report.findings.found["unreadable"] == 0:
        with report.findings.noting("unreadable"):
            check_indexes(pair, span.after, report.findings)


def _by_bucket(pending: Sequence[Words], buckets: int) -> Iterator[tuple[int, Words]]:
    entries = np.concatenate([*pending, np.empty((0, 3), np.uint64)])
    numbers = bucket_of(entries, buckets)
    for bucket in np.unique(numbers).tolist():
        its_entries = entries if buckets == 1 else entries[numbers == bucket]
        for start in range(0, len(its_entries), _BLOB_ENTRIES):
            yield bucket, its_entries[start : start + _BLOB_ENTRIES]


def _compare(pair: LogPair, span: Span, report: SpanReport) -> Iterator[Words]:
    findings = report.findings
    limit, aborted = pair.settings.batch_limit, AbortedIndex(pair.aborted)
    after = None if span.after is None else AfterStream(pair.after[span.after], span.end, limit, findings)
    try:
        for number in span.before:
            segment = pair.before[number]
            rewritable = segment.base_offset < pair.rewritten_end and after is not None
            for before in read_before(segment, span.start, span.end, limit):
                comparison = Comparison(pair, before, aborted, rewritable, findings)
                if after is None:
                    comparison.skip_expired(report.transactions)
                    continue
                for taken in after.take(int(before.batches["last_offset"][-1])):
                    comparison.match(taken)
                if not findings.complete:
                    return
                yield comparison.check(report.transactions)
                if len(report.horizons) < _MAX_HORIZONS:
                    report.horizons |= comparison.new_horizons
    except CorruptFileError as error:
        findings.complete = False
        findings.add_error("before_damaged", error)
    finally:
        if after is not None:
            after.finish(report_rest=findings.complete)


# The indexes of a segment: a lookup by them must skip no record.
#
# Whatever ``index.interval.bytes`` was, an offset entry (o, position) points at a batch, and all batches
# before it end below o; a time entry (t, o) has no batch before o's with a timestamp above t. Where the
# interval is known, a rewritten segment's indexes must be those that its log gives, byte for byte.


class _Batches(NamedTuple):
    """The header fields that indexes are built from: int64, one a batch of a segment."""

    position: Int64
    last_offset: Int64
    max_timestamp: Int64
    size: Int64


def check_indexes(pair: LogPair, number: int, findings: Findings) -> None:
    """The offset and the time index of segment ``number`` of AFTER, whose log is sound. Raises OSError."""
    segment = pair.after[number]
    with files.Reader(segment.path) as reader:
        headers = batch_headers(reader, end=segment.size)
        parts = [np.column_stack([part[name] for name in _Batches._fields]) for part in headers]
    batches = _Batches(*np.concatenate([np.empty((0, 4), np.int64), *parts]).T.copy())
    expected = _expected_indexes(pair, segment, batches)
    for kind, problem in (("index", "index"), ("timeindex", "time_index")):
        path = Path(segment.directory) / segment_file(segment.base_offset, kind)
        try:
            data = files.read_bytes(path)
        except FileNotFoundError:
            if segment.size:
                findings.add(problem, "is missing", path=str(path))
            continue
        with findings.noting(problem):
            entries = read_entries(data, kind, str(path))
            if kind == "index":
                wrong = _wrong_offset_entry(batches, segment, entries)
            else:
                wrong = _wrong_time_entry(batches, segment, entries, is_active=segment is pair.after[-1])
            if wrong is not None:
                findings.add(problem, wrong[1], path=str(path), position=wrong[0] * entries.itemsize)
        if expected.get(kind, data) != data:
            findings.add(problem, "is not what its log gives", path=str(path))


def _expected_indexes(pair: LogPair, segment: Segment, batches: _Batches) -> dict[str, bytes]:
    """What the indexes of a rewritten segment must be, where the interval is known."""
    interval = pair.settings.index_interval
    if interval is None or segment.base_offset >= pair.rewritten_end or not pair.was_cleaned:
        return {}
    builder = IndexBuilder(segment.base_offset, interval, pair.settings.index_bytes)
    builder.add(batches.last_offset, batches.max_timestamp, batches.size)
    return builder.finish()


def _wrong_offset_entry(batches: _Batches, segment: Segment, entries: Entries) -> tuple[int, str] | None:
    """The first offset entry, with its row, that leads past a record."""
    positions, last = batches.position, batches.last_offset
    offsets, position = _offsets_of(entries, segment), entries["position"].astype(np.int64)
    if not len(entries):
        return None
    if not len(positions):
        return 0, "an entry for a segment without a batch"
    batch = np.searchsorted(positions, position).clip(max=len(positions) - 1)
    previous = np.where(batch > 0, last[np.maximum(batch - 1, 0)], segment.base_offset - 1)
    return _first_wrong(
        (positions[batch] != position, "points at no batch"),
        (previous >= offsets, "points at a batch above its offset"),
        (offsets > last[-1], "has an offset above the segment's last"),
    )


def _wrong_time_entry(
    batches: _Batches, segment: Segment, entries: Entries, *, is_active: bool
) -> tuple[int, str] | None:
    """The first time entry, with its row, that leads past a record; the last one of a closed segment is its
    largest timestamp."""
    last, timestamps = batches.last_offset, batches.max_timestamp
    offsets, times = _offsets_of(entries, segment), entries["timestamp"].astype(np.int64)
    below = np.searchsorted(last, offsets)  # batches that end below the entry's offset
    youngest = np.append(np.int64(-1), np.maximum.accumulate(timestamps))
    wrong = _first_wrong(
        (youngest[below] > times, "has an older time than a batch before it"),
        (offsets > (last[-1] if len(last) else -1), "has an offset above the segment's last"),
    )
    largest = int(timestamps.max(initial=-1))
    if wrong is None and not is_active and largest > 0 and times[-1:].tolist() != [largest]:
        return max(len(entries) - 1, 0), "does not end with the segment's largest timestamp"
    return wrong


def _offsets_of(entries: Entries, segment: Segment) -> Int64:
    return entries["relative_offset"].astype(np.int64) + segment.base_offset


def _first_wrong(*checks: tuple[Flags, str]) -> tuple[int, str] | None:
    """The first entry that fails a check, of the first check that one fails."""
    return next(((int(bad.argmax()), f"an entry {detail}") for bad, detail in checks if bad.any()), None)


# The conclusion from all parts of one log.


def _conclude(
    pair: LogPair, reports: Iterable[SpanReport], key_findings: Findings, findings: Findings
) -> None:
    """Add the findings of all parts of one log to ``findings``. Raises CorruptFileError, OSError for
    ``.txnindex`` files of AFTER."""
    ordered = sorted(reports, key=lambda report: report.number)
    for report in ordered:
        findings.merge(report.findings)
    complete = findings.complete
    # A span that could not be read may hold the later record of any key: then nothing is known to be lost.
    findings.merge(key_findings if complete else Findings(counts=key_findings.counts))
    transactions = [report.transactions for report in ordered]
    aborts = check_unresolved_markers(pair, transactions, findings if complete else Findings())
    after = [(segment.base_offset, transaction_indexes([segment])) for segment in pair.after]
    if complete:
        check_entries(pair, after, aborts, findings)
    _check_horizons(pair.settings, set().union(*(report.horizons for report in ordered)), findings)


def _check_horizons(settings: CleaningSettings, horizons: set[int], findings: Findings) -> None:
    if len(horizons) > 1:
        shown = ", ".join(map(str, sorted(horizons)[:3]))
        findings.add("horizons_differ", f"new ones of one pass: {shown}", times=len(horizons) - 1)
    elif horizons and settings.now_is_exact and settings.delete_retention_ms is not None:
        (horizon,) = horizons
        expected = min(settings.now_ms + settings.delete_retention_ms, LONG_MAX)
        if horizon != expected:
            findings.add("horizons_differ", f"{horizon}, but now and delete.retention.ms give {expected}")
