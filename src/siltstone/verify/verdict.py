"""All parts of a log's check put together, and the whole check in this process.

``LogVerdict.problems`` is empty for a cleaning that kept all its promises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from siltstone.base.config import LONG_MAX
from siltstone.base.errors import CheckFailedError, CorruptFileError, SourceChangedError
from siltstone.base.records.layout import Words
from siltstone.log.transactions import transaction_indexes
from siltstone.verify.comparing import AfterStream, Comparison, before_pieces
from siltstone.verify.findings import Findings, Problem
from siltstone.verify.indexes import check_indexes
from siltstone.verify.keys import JUDGE_BYTES, bucket_of, judge_bucket
from siltstone.verify.pairs import LogPair, Span, spans_of
from siltstone.verify.transactions import AbortedIndex, SpanTransactions, check_entries, settle

# One span of a log checked: the segments of BEFORE streamed beside the one of AFTER.

HORIZONS_MOST = 10
BLOB_ENTRIES = (16 << 20) // 24


@dataclass(slots=True, kw_only=True)
class SpanReport:
    """What a span came to; ``horizons``: the delete horizons (ms) that AFTER gave anew, some of them."""

    number: int
    findings: Findings = field(default_factory=Findings)
    transactions: SpanTransactions = field(default_factory=SpanTransactions)
    horizons: set[int] = field(default_factory=set)


def check_span(pair: LogPair, span: Span, buckets: int, report: SpanReport) -> Iterator[tuple[int, Words]]:
    """Fill ``report``; yields (bucket, entries), 16 MiB each at most. Raises nothing for what is in files."""
    report.number = span.number
    pending: dict[int, list[Words]] = {}
    waiting = 0
    try:
        for entries in _compare(pair, span, report):
            where = bucket_of(entries, buckets) if buckets > 1 else None
            for bucket in range(buckets):
                mine = entries if where is None else entries[where == bucket]
                if len(mine):
                    pending.setdefault(bucket, []).append(mine)
            waiting += len(entries)
            if waiting >= BLOB_ENTRIES * max(1, min(buckets, 4)):
                yield from _flushed(pending)
                waiting = 0
        yield from _flushed(pending)
    except (SourceChangedError, OSError) as error:
        report.findings.whole = False
        report.findings.add("before_damaged", str(error))
    if span.after is not None and report.findings.found["unreadable"] == 0:
        try:
            check_indexes(pair, span.after, report.findings)
        except CorruptFileError as error:
            report.findings.add("unreadable", error.reason, path=error.path, position=error.position)


def _flushed(pending: dict[int, list[Words]]) -> Iterator[tuple[int, Words]]:
    for bucket in list(pending):
        entries = np.concatenate(pending.pop(bucket))
        for start in range(0, len(entries), BLOB_ENTRIES):
            yield bucket, entries[start : start + BLOB_ENTRIES]


def _compare(pair: LogPair, span: Span, report: SpanReport) -> Iterator[Words]:
    findings = report.findings
    limit, aborted = pair.terms.batch_limit, AbortedIndex(pair.aborted)
    after = None if span.after is None else AfterStream(pair.after[span.after], span.end, limit, findings)
    try:
        for number in span.before:
            segment = pair.before[number]
            rewritten = segment.base_offset < pair.rewritten_end and after is not None
            for piece in before_pieces(segment, span.start, span.end, limit):
                comparison = Comparison(pair, piece, aborted, rewritten, findings)
                if after is None:
                    comparison.follow(report.transactions)
                    continue
                for other in after.take(int(piece.batches["last_offset"][-1])):
                    comparison.match(other)
                if not findings.whole:
                    return
                yield comparison.judge(report.transactions)
                if len(report.horizons) < HORIZONS_MOST:
                    report.horizons |= comparison.new_horizons
    except CorruptFileError as error:
        findings.whole = False
        findings.add("before_damaged", error.reason, path=error.path, position=error.position)
        return
    finally:
        if after is not None:
            after.finish(read_on=findings.whole)


BUCKET_BYTES = 512 << 20
"""About what the judging of one bucket may take."""


@dataclass(slots=True, kw_only=True)
class LogVerdict:
    """What is said of one log. Counts are of records; ``removed`` by reason; ``found`` counts problems by
    kind, of which ``problems`` are the first few."""

    topic: str
    partition: int
    first_dirty_offset: int | None = None
    cleaned_end_offset: int | None = None
    records_before: int = 0
    records_after: int = 0
    distinct_keys: int = 0
    removed: dict[str, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    found: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def is_sound(self) -> bool:
        """Nothing wrong was found."""
        return not self.found

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary for ``json``."""
        return {"status": "ok" if self.is_sound else "problems", **asdict(self)}


@dataclass(slots=True, kw_only=True)
class Verdict:
    """What is said of all logs of two directories."""

    logs: list[LogVerdict] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def is_sound(self) -> bool:
        """Nothing wrong was found in any log."""
        return all(each.is_sound for each in self.logs)

    def raise_for_errors(self) -> None:
        """Raises CheckFailedError, with the first problem, unless all is sound."""
        for log in self.logs:
            if not log.is_sound:
                kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(log.found.items()))
                raise CheckFailedError(f"{log.topic}-{log.partition}: {log.problems[0]} (all: {kinds})")

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary for ``json``."""
        return {
            "status": "ok" if self.is_sound else "problems",
            "logs": [log.to_json() for log in self.logs],
            "notes": self.notes,
        }


Checker = Callable[[Sequence[LogPair]], dict[str, tuple[list[SpanReport], list[Findings]]]]
"""Runs all spans and buckets of some logs: by name, the spans' reports and the buckets' findings."""


def bucket_count(pair: LogPair, at_least: int = 1) -> int:
    """Buckets so that one is judged in about ``BUCKET_BYTES``; offsets bound the records."""
    first = pair.before[0].base_offset if pair.before else 0
    span = max(pair.cleaned_end - first, 0)
    return max(at_least, -(-span * JUDGE_BYTES // BUCKET_BYTES))


def check_here(pairs: Sequence[LogPair]) -> dict[str, tuple[list[SpanReport], list[Findings]]]:
    """One log after another, in this process. Memory: 24 bytes a record with a key, and a bucket's."""
    done = {}
    for pair in pairs:
        buckets = bucket_count(pair)
        blobs: dict[int, list[Words]] = {}
        reports = []
        for span in spans_of(pair):
            report = SpanReport(number=span.number)
            for bucket, entries in check_span(pair, span, buckets, report):
                blobs.setdefault(bucket, []).append(entries)
            reports.append(report)
        judged = [
            judge_bucket(blobs.pop(bucket), first_dirty=pair.first_dirty, must=pair.was_cleaned)
            for bucket in sorted(blobs)
        ]
        done[pair.name] = (reports, judged)
    return done


def conclude(
    pair: LogPair, reports: Iterable[SpanReport], judged: Iterable[Findings], findings: Findings
) -> None:
    """Put the parts of one log together into ``findings``. Raises CorruptFileError, OSError for ``.txnindex``
    files of AFTER."""
    ordered = sorted(reports, key=lambda report: report.number)
    for report in ordered:
        findings.merge(report.findings)
    whole = findings.whole
    for each in judged:
        if not whole:
            each.problems, each.found = [], type(each.found)()
        findings.merge(each)
    aborts = settle(pair, [report.transactions for report in ordered], findings if whole else Findings())
    after = [(segment.base_offset, transaction_indexes([segment])) for segment in pair.after]
    if whole:
        check_entries(pair, after, aborts, findings)
    _check_horizons(pair, set().union(*(report.horizons for report in ordered)), findings)


def _check_horizons(pair: LogPair, horizons: set[int], findings: Findings) -> None:
    terms = pair.terms
    if len(horizons) > 1:
        shown = ", ".join(map(str, sorted(horizons)[:3]))
        findings.add("horizons_differ", f"new ones of one pass: {shown}", times=len(horizons) - 1)
    elif horizons and terms.now_is_exact and terms.delete_retention_ms is not None:
        (horizon,) = horizons
        wanted = min(terms.now_ms + terms.delete_retention_ms, LONG_MAX)
        if horizon != wanted:
            findings.add("horizons_differ", f"{horizon}, where now and delete.retention.ms give {wanted}")
