"""Runs the check of a cleaning: compares spans, checks keys by bucket, and gives a verdict on each log.

A *span* has the offsets of one segment of AFTER, or those below AFTER's first segment, which retention
deleted. It is compared with the segments of BEFORE that have the same offsets. A *bucket* has the keys whose
hashes are in one of several equal ranges.

``verify`` runs all of it. A ``Checker`` runs the spans and buckets: ``check_in_process`` in this process, or
``spark.verify`` in tasks.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from siltstone.base import files
from siltstone.base.config import LONG_MAX
from siltstone.base.records.layout import Flags, Int64, Words, keyed_records_max
from siltstone.log.indexes import Entries, IndexBuilder, read_entries
from siltstone.log.lookup import batch_headers
from siltstone.log.names import TopicPartition, segment_file
from siltstone.log.segments import Segment
from siltstone.log.transactions import read_transaction_indexes
from siltstone.verify.comparing import AfterStream, Comparison, read_before
from siltstone.verify.findings import FILE_ERRORS, REASONS, Findings, LogVerdict, Verdict
from siltstone.verify.keys import CHECK_BYTES_PER_ENTRY, ENTRY_BYTES, bucket_of, check_bucket
from siltstone.verify.pairs import CleaningSettings, LogPair, Span, open_sides, pair_of, spans_of
from siltstone.verify.transactions import (
    AbortedIndex,
    SpanTransactions,
    check_transaction_indexes,
    check_unresolved_markers,
)

BUCKET_BYTES = 512 << 20
"""About how many bytes of memory the check of one bucket may take."""
_CHUNK_ENTRIES = (16 << 20) // ENTRY_BYTES
"""Entries in 16 MiB: as many as ``check_span`` yields at a time."""
_MAX_HORIZONS = 10
"""The most new delete horizons that a span reports. A correct cleaning sets the same one everywhere."""


@dataclass(slots=True, kw_only=True)
class SpanReport:
    """The result of one span. ``number``: the span's. ``new_horizons``: delete horizons (ms) in AFTER that
    are not in BEFORE."""

    number: int
    findings: Findings = field(default_factory=Findings)
    transactions: SpanTransactions = field(default_factory=SpanTransactions)
    new_horizons: set[int] = field(default_factory=set)


CheckedLogs = dict[str, tuple[list[SpanReport], Findings]]
"""Name of a log → (the reports of its spans, in any order; the findings of all its buckets)."""
Checker = Callable[[Sequence[LogPair]], CheckedLogs]
"""Checks all spans and buckets of some logs."""


def verify(
    before: Sequence[Path],
    after: Sequence[Path],
    checker: Checker,
    settings_of: Callable[[TopicPartition], CleaningSettings],
    topics: Sequence[str] = (),
) -> Verdict:
    """Check every log of ``after`` against ``before``; ``checker`` checks the spans and buckets.

    Both are all log directories of a broker, in any order. ``settings_of``: the settings of the cleaning for
    a partition; ``topics``: check only these, empty: all. Raises UsageError, NotALogDirectoryError,
    DirectoryRefusedError, CorruptFileError (a checkpoint), EngineError, OSError (a directory). What is wrong
    with a log does not raise: its verdict has it.
    """
    old, new, notes = open_sides(before, after, topics)
    logs = {partition: Findings() for partition in sorted({*old, *new})}
    pairs: dict[TopicPartition, LogPair] = {}
    for partition, findings in logs.items():
        before_log, after_log, settings = old.get(partition), new.get(partition), settings_of(partition)
        with findings.reporting_as("before_damaged"):
            pair = pair_of(partition, before_log, after_log, settings, findings)
            if pair is not None:
                pairs[partition] = pair
    checked = checker(list(pairs.values()))
    for partition, pair in pairs.items():
        with logs[partition].reporting_as("aborted_entry"):
            _combine_findings(pair, *checked[pair.name], logs[partition])
    verdicts = [_verdict(partition, pairs.get(partition), findings) for partition, findings in logs.items()]
    return Verdict(logs=verdicts, notes=notes)


def _verdict(partition: TopicPartition, pair: LogPair | None, findings: Findings) -> LogVerdict:
    counts = findings.counts
    return LogVerdict(
        topic=partition.topic,
        partition=partition.partition,
        first_dirty_offset=None if pair is None else pair.first_dirty_offset,
        cleaned_end_offset=None if pair is None else pair.cleaned_end_offset,
        records_before=counts["before"],
        records_after=counts["after"],
        distinct_keys=counts["keys"],
        removed={reason: counts[reason] for reason in REASONS},
        problems=findings.problems,
        found=dict(findings.problem_counts),
        notes=findings.notes,
    )


def bucket_count(pair: LogPair, minimum: int = 1) -> int:
    """How many buckets a log is checked in, at least ``minimum``: each takes about ``BUCKET_BYTES``."""
    return max(minimum, -(-entry_count_max(pair) * CHECK_BYTES_PER_ENTRY // BUCKET_BYTES))


def entry_count_max(pair: LogPair) -> int:
    """The most key entries that BEFORE may have: one for each record with a key."""
    offsets = pair.cleaned_end_offset - pair.before[0].base_offset
    return keyed_records_max(offsets, sum(segment.size for segment in pair.before))


def check_in_process(pairs: Sequence[LogPair]) -> CheckedLogs:
    """Check one log after another in this process. Takes 24 bytes of memory for each record with a key, and
    about ``BUCKET_BYTES``."""
    checked: CheckedLogs = {}
    for pair in pairs:
        buckets, chunks_by_bucket = bucket_count(pair), dict[int, list[Words]]()
        reports, key_findings = checked[pair.name] = [], Findings()
        for span in spans_of(pair):
            report = SpanReport(number=span.number)
            for bucket, entries in check_span(pair, span, buckets, report):
                chunks_by_bucket.setdefault(bucket, []).append(entries)
            reports.append(report)
        for bucket in sorted(chunks_by_bucket):
            key_findings.merge(
                check_bucket(
                    chunks_by_bucket.pop(bucket),
                    first_dirty_offset=pair.first_dirty_offset,
                    was_cleaned=pair.was_cleaned,
                )
            )
    return checked


# One span of a log: its segment of AFTER and the segments of BEFORE with the same offsets are read together.


def check_span(pair: LogPair, span: Span, buckets: int, report: SpanReport) -> Iterator[tuple[int, Words]]:
    """Check a span and fill ``report``; yields (bucket, entries), at most 16 MiB each.

    A file that is damaged or cannot be read raises nothing: the report has it. ``buckets``: how many buckets
    there are.
    """
    pending, pending_count = list[Words](), 0
    for entries in _compare(pair, span, report):
        pending.append(entries)
        pending_count += len(entries)
        # With several buckets up to 64 MiB are gathered before they are split, so that not all chunks are
        # small.
        if pending_count >= _CHUNK_ENTRIES * max(1, min(buckets, 4)):
            yield from _split_by_bucket(pending, buckets)
            pending, pending_count = [], 0
    yield from _split_by_bucket(pending, buckets)
    if span.after is not None and report.findings.problem_counts["unreadable"] == 0:
        with report.findings.reporting_as("unreadable", pair.after[span.after].path):
            check_indexes(pair, span.after, report.findings)


def _split_by_bucket(pending: Sequence[Words], buckets: int) -> Iterator[tuple[int, Words]]:
    """Yield (bucket, its entries), at most 16 MiB of entries at a time."""
    entries = np.concatenate([*pending, np.empty((0, 3), np.uint64)])
    numbers = bucket_of(entries, buckets)
    if buckets > 1:
        order = np.argsort(numbers, kind="stable")
        entries, numbers = entries[order], numbers[order]
    edges = np.flatnonzero(np.diff(numbers)) + 1
    for start, end in itertools.pairwise([0, *edges.tolist(), len(entries)]):
        for first in range(start, end, _CHUNK_ENTRIES):
            yield int(numbers[start]), entries[first : min(first + _CHUNK_ENTRIES, end)]


def _compare(pair: LogPair, span: Span, report: SpanReport) -> Iterator[Words]:
    """Read BEFORE and AFTER side by side and compare them; yields the key entries of BEFORE's records, some
    batches at a time. Damage on either side ends the comparison: ``findings.is_complete`` is False then."""
    findings = report.findings
    limit, aborted = pair.settings.batch_limit, AbortedIndex(pair.aborted_entries)
    after = None if span.after is None else AfterStream(pair.after[span.after], span.end, limit, findings)
    path = None
    try:
        for segment in (pair.before[number] for number in span.before):
            path = segment.path
            is_rewritable = segment.base_offset < pair.rewritten_end_offset and after is not None
            for before in read_before(segment, span.start, span.end, limit):
                comparison = Comparison(pair, before, aborted, is_rewritable, findings)
                if after is None:
                    comparison.skip_expired(report.transactions)
                    continue
                for taken in after.take(int(before.batches["last_offset"][-1])):
                    comparison.match(taken)
                if not findings.is_complete:
                    return
                yield comparison.check(report.transactions)
                if len(report.new_horizons) < _MAX_HORIZONS:
                    report.new_horizons |= comparison.new_horizons
    except FILE_ERRORS as error:  # of BEFORE: ``AfterStream`` reports those of AFTER
        findings.is_complete = False
        findings.add_error("before_damaged", error, path)
    finally:
        if after is not None:
            after.finish(report_untaken=findings.is_complete)


# The indexes of a segment: a lookup by them must skip no record.
#
# That is so with any ``index.interval.bytes`` if two rules hold. An entry (o, position) of the offset index
# points at a batch, and all batches before that batch end below offset o. For an entry (t, o) of the time
# index, no batch that ends below offset o has a timestamp above t. If the interval is known, the indexes of a
# rewritten segment must even be, byte for byte, those that its ``.log`` file gives.


class _Batches(NamedTuple):
    """The header fields that indexes are built from: int64, one a batch of a segment."""

    position: Int64
    last_offset: Int64
    max_timestamp: Int64
    size: Int64


def check_indexes(pair: LogPair, number: int, findings: Findings) -> None:
    """Check the offset and time index of segment ``number`` of AFTER, whose ``.log`` file is sound. Raises
    OSError for that file."""
    segment = pair.after[number]
    with files.Reader(segment.path) as reader:
        headers = batch_headers(reader, end=segment.size)
        parts = [np.column_stack([part[name] for name in _Batches._fields]) for part in headers]
    batches = _Batches(*np.concatenate([np.empty((0, 4), np.int64), *parts]).T.copy())
    expected = _expected_indexes(pair, segment, batches)
    for kind, problem in (("index", "index"), ("timeindex", "time_index")):
        path = Path(segment.directory) / segment_file(segment.base_offset, kind)
        with findings.reporting_as(problem, str(path)):
            try:
                data = files.read_bytes(path)
            except FileNotFoundError:
                if segment.size:
                    findings.add(problem, "is missing", path=str(path))
                continue
            if expected.get(kind, data) != data:
                findings.add(problem, "is not what its log gives", path=str(path))
            entries = read_entries(data, kind, str(path))
            if kind == "index":
                wrong = _wrong_offset_entry(batches, segment, entries)
            else:
                wrong = _wrong_time_entry(batches, segment, entries, is_active=segment is pair.after[-1])
            if wrong is not None:
                findings.add(problem, wrong[1], path=str(path), position=wrong[0] * entries.itemsize)


def _expected_indexes(pair: LogPair, segment: Segment, batches: _Batches) -> dict[str, bytes]:
    """Kind of index → its expected bytes, for a rewritten segment and if the index interval is known."""
    interval = pair.settings.index_interval
    if interval is None or segment.base_offset >= pair.rewritten_end_offset or not pair.was_cleaned:
        return {}
    builder = IndexBuilder(segment.base_offset, interval, pair.settings.index_bytes)
    builder.add(batches.last_offset, batches.max_timestamp, batches.size)
    return builder.finish()


def _wrong_offset_entry(batches: _Batches, segment: Segment, entries: Entries) -> tuple[int, str] | None:
    """The first entry of the offset index that makes a lookup skip a record: its row, and what is wrong."""
    positions, last = batches.position, batches.last_offset
    offsets, position = _entry_offsets(entries, segment), entries["position"].astype(np.int64)
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
    """The first entry of the time index that makes a lookup skip a record: its row, and what is wrong.

    A closed segment's last entry must have its largest timestamp.
    """
    last, timestamps = batches.last_offset, batches.max_timestamp
    offsets, times = _entry_offsets(entries, segment), entries["timestamp"].astype(np.int64)
    below = np.searchsorted(last, offsets)  # how many batches end below the entry's offset
    # Element n: the largest timestamp of the first n batches, -1 of none.
    largest_of_first = np.append(np.int64(-1), np.maximum.accumulate(timestamps))
    wrong = _first_wrong(
        (largest_of_first[below] > times, "has an older time than a batch before it"),
        (offsets > (last[-1] if len(last) else -1), "has an offset above the segment's last"),
    )
    largest = int(timestamps.max(initial=-1))
    if wrong is None and not is_active and largest > 0 and times[-1:].tolist() != [largest]:
        return max(len(entries) - 1, 0), "does not end with the segment's largest timestamp"
    return wrong


def _entry_offsets(entries: Entries, segment: Segment) -> Int64:
    return entries["relative_offset"].astype(np.int64) + segment.base_offset


def _first_wrong(*checks: tuple[Flags, str]) -> tuple[int, str] | None:
    """(row of the first entry that fails, what is wrong) for the first check that fails; None if none fails.
    A check has a bool for each entry, True if it fails, and says what is wrong then."""
    return next(((int(bad.argmax()), f"an entry {detail}") for bad, detail in checks if bad.any()), None)


# The conclusion from all parts of one log.


def _combine_findings(
    pair: LogPair, reports: Iterable[SpanReport], key_findings: Findings, findings: Findings
) -> None:
    """Add the findings of a log's spans and buckets to ``findings``, and check what concerns several spans.

    Raises CorruptFileError and OSError for ``.txnindex`` files of AFTER.
    """
    ordered = sorted(reports, key=lambda report: report.number)
    for report in ordered:
        findings.merge(report.findings)
    is_complete = findings.is_complete
    # A span that could not be read may have a later record of any key: then no record can be said to be lost,
    # so only the counts are merged, not the problems.
    findings.merge(key_findings if is_complete else Findings(counts=key_findings.counts))
    transactions = [report.transactions for report in ordered]
    aborts = check_unresolved_markers(pair, transactions, findings if is_complete else Findings())
    after = [(segment.base_offset, read_transaction_indexes([segment])) for segment in pair.after]
    if is_complete:
        check_transaction_indexes(pair, after, aborts, findings)
    _check_horizons(pair.settings, set().union(*(report.new_horizons for report in ordered)), findings)


def _check_horizons(settings: CleaningSettings, horizons: set[int], findings: Findings) -> None:
    """All new delete horizons must be the same: the cleaning's time plus ``delete.retention.ms``."""
    if len(horizons) > 1:
        shown = ", ".join(map(str, sorted(horizons)[:3]))
        findings.add("horizons_differ", f"new horizons of one cleaning: {shown}", times=len(horizons) - 1)
    elif horizons and settings.cleaned_at_is_exact and settings.delete_retention_ms is not None:
        (horizon,) = horizons
        expected = min(settings.cleaned_at_ms + settings.delete_retention_ms, LONG_MAX)
        if horizon != expected:
            findings.add(
                "horizons_differ",
                f"{horizon}, but the cleaning's time plus delete.retention.ms is {expected}",
            )
