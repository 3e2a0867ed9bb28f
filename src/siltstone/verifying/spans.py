"""One span of a log checked: the segments of BEFORE streamed beside the one of AFTER."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from siltstone.errors import CorruptFileError, SourceChangedError
from siltstone.verifying.comparing import Comparison
from siltstone.verifying.findings import Findings
from siltstone.verifying.indexes import check_indexes
from siltstone.verifying.keys import Words, bucket_of
from siltstone.verifying.pairs import LogPair, Span
from siltstone.verifying.streams import AfterStream, DisorderError, Piece, before_pieces
from siltstone.verifying.transactions import AbortedIndex, SpanTransactions

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
    after = None if span.after is None else _After(pair, span, findings)
    aborted = AbortedIndex(pair.aborted)
    try:
        for number in span.before:
            segment = pair.before[number]
            rewritten = segment.base_offset < pair.rewritten_end and after is not None
            for piece in before_pieces(segment, span.start, span.end, pair.terms.batch_limit):
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


class _After:
    """AFTER's segment of a span; what is wrong with it ends it, and is told once."""

    def __init__(self, pair: LogPair, span: Span, findings: Findings) -> None:
        assert span.after is not None
        segment, limit = pair.after[span.after], pair.terms.batch_limit
        self._stream: AfterStream | None = AfterStream(segment, span.end, limit)
        self._findings, self._end = findings, span.end

    def take(self, upto: int) -> Iterator[Piece]:
        """See ``AfterStream.take``; nothing any more once there was trouble."""
        if self._stream is None:
            return
        try:
            yield from self._stream.take(upto)
        except CorruptFileError as error:
            self._give_up()
            self._findings.add("unreadable", error.reason, path=error.path, position=error.position)
        except DisorderError as error:
            path = self._stream.path
            self._give_up()
            self._findings.add(error.kind, str(error), path=path, position=error.position)

    def _give_up(self) -> None:
        self._findings.whole = False
        assert self._stream is not None
        self._stream.close()
        self._stream = None

    def finish(self, *, read_on: bool) -> None:
        """What is left in it is in no batch of BEFORE."""
        for piece in self.take(self._end) if read_on else ():
            self._findings.add(
                "batch_unknown",
                "nothing of BEFORE is there",
                offset=int(piece.batches["base_offset"][0]),
                path=piece.path,
                position=piece.position(0),
                times=len(piece.batches),
            )
        if self._stream is not None:
            self._stream.close()
            self._stream = None
