"""All parts of a log's check put together, and the whole check in this process.

``LogVerdict.problems`` is empty for a cleaning that kept all its promises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from siltstone.config import LONG_MAX
from siltstone.errors import CheckFailedError
from siltstone.log.transactions import transaction_indexes
from siltstone.verifying.findings import Findings, Problem
from siltstone.verifying.keys import JUDGE_BYTES, KeyTerms, Words, judge_bucket
from siltstone.verifying.pairs import LogPair, spans_of
from siltstone.verifying.spans import SpanReport, check_span
from siltstone.verifying.transactions import check_entries, settle

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


def key_terms(pair: LogPair) -> KeyTerms:
    """What the keys of a log are judged by."""
    return KeyTerms(first_dirty=pair.first_dirty, must=pair.was_cleaned)


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
        judged = [judge_bucket(blobs.pop(bucket), key_terms(pair)) for bucket in sorted(blobs)]
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
