"""``siltstone explain`` shows what a cleaning would do, ``siltstone verify`` whether one was correct."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from siltstone.base import files
from siltstone.base.clock import time_text
from siltstone.base.errors import shown_path
from siltstone.cli import output
from siltstone.commands import review
from siltstone.commands.explain_page import counted, size_text
from siltstone.compaction.explain import (
    HOTTEST_KEYS_DEFAULT,
    WOULD_CLEAN,
    Explanation,
    LogExplanation,
)
from siltstone.compaction.report import FAILED, REASONS, SKIPPED, UNCLEANABLE
from siltstone.compaction.statistics import KEPT_BY_LEDGER, NOT_STAMPED
from siltstone.log.tiered.joining import with_remotes
from siltstone.verify.fetched import FETCHED_PROBLEM_KINDS, NOT_SEEN, FetchedVerdict
from siltstone.verify.findings import PROBLEM_KINDS, LogVerdict, Verdict
from siltstone.verify.findings import REASONS as VERIFIED_REASONS

_VERBOSE_COLUMNS = ("keys", "dirty", "passes")
"""Columns that only ``--verbose`` shows, or a table of one log."""
GROUPS_MAX = 12
"""Groups of a log in the printed tables; the page and the JSON have all of them."""


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainFlags(review.ExplainRequest):
    """The request as flags; the directories are arguments."""

    directories: output.FromArguments = ()
    topics: output.Topics = ()


def explain(
    directories: output.Directories = (),
    /,
    *,
    dir_: output.DirFlag = (),
    stores: output.StoreFlags = output.StoreFlags(),
    flags: ExplainFlags = ExplainFlags(),
    html: Path | None = None,
    verbose: output.Verbose = False,
    quiet: output.Quiet = False,
    json_: output.Json = False,
) -> int:
    """Show what clean would do with Kafka log directories, and why, as a dry run with its statistics.

    For each log: the records to discard by reason, groups, what bounds the range, the passes that Kafka would
    need, distinct and hottest keys, and the reclaimable bytes over time. Nothing is locked or changed.

    Parameters
    ----------
    directories
        Kafka log directories (all log.dirs of one broker together), or one partition directory;
        also as --dir.
    dir_
        The same as DIRECTORIES; repeat it for more.
    html
        Write a page with plots to this new file.
    verbose
        Show the range, groups and tombstones of each log, too, as for a single log.
    quiet
        Show no progress, and only what failed.
    json_
        Print one JSON document.
    """
    if html is not None:
        output.refuse_if(files.exists(html), f"--html {html}: already exists", "pass a new file")
        from siltstone.commands.explain_page import page
    request = replace(flags, directories=output.named_directories(directories, dir_, stores.remote))
    with output.RunProgress(quiet=quiet or json_) as progress:
        explanation = review.explain(request, progress=progress)
    if html is not None:
        files.write_new(html, shown_path(page(explanation)).encode())
    if json_:
        output.write_json(explanation.to_json())
    else:
        _show_explanation(explanation, request, verbose=verbose, quiet=quiet)
    return 1 if any(log.status in (FAILED, UNCLEANABLE) for log in explanation.logs) else 0


def _show_explanation(
    explanation: Explanation, request: review.ExplainRequest, *, verbose: bool, quiet: bool
) -> None:
    failed = [log for log in explanation.logs if log.status in (FAILED, UNCLEANABLE)]
    if quiet:
        output.note(*output.reason_lines(_status_reasons(failed)))
        return
    explained = [log for log in explanation.logs if log.is_explained]
    rows = [log for log in explanation.logs if verbose or _has_figures(log) or log.status != SKIPPED]
    if rows:
        names = ("log", "state", "bytes", "records", *REASONS, *_VERBOSE_COLUMNS)
        is_detailed = verbose or len(explained) == 1
        shown = names if is_detailed else names[: -len(_VERBOSE_COLUMNS)]
        cells = (_explanation_row(log)[: len(shown)] for log in rows)
        output.write_table("what cleaning would do", shown, cells, left=2)
    output.write_wrapped(*output.reason_lines(_status_reasons(explanation.logs)))
    for log in explanation.logs:
        output.write_wrapped(*(f"{log.name}: {text}" for text in log.notes))
        if log.is_explained and (verbose or len(explained) == 1):
            _show_log(log)
        if log.is_explained and (request.show_keys or request.top != HOTTEST_KEYS_DEFAULT):
            _show_keys(log)
    if verbose:  # entries of the log directories that are no partition's directory, and so were ignored
        output.write_lines(*(f"passed over: {path} ({reason})" for path, reason in explanation.passed_over))
    output.write_lines(_summary(explanation))
    output.note(*explanation.notes)


def _has_figures(log: LogExplanation) -> bool:
    """Has the log's row more than its state: was it explained, or does retention remove segments of it?"""
    return log.is_explained or log.outcome.expired.segments > 0


def _status_reasons(logs: Iterable[LogExplanation]) -> Iterator[tuple[tuple[str, str], object]]:
    """((status, the reason for it), name) of each log with a reason, for ``output.reason_lines``."""
    for log in logs:
        if log.reason:
            yield (log.status, log.reason), log.name


def _summary(explanation: Explanation) -> str:
    """``12 of 14 logs would be cleaned: 480 kB → 210 kB, 3,400 of 9,000 records removed (700 expired)``."""
    logs = [log for log in explanation.logs if log.status == WOULD_CLEAN]
    of_all = f"of {counted(len(explanation.logs), 'log')}"
    if not logs:
        return f"none {of_all} would be cleaned"
    before, after = sum(log.bytes_before for log in logs), sum(log.bytes_after or 0 for log in logs)
    total = sum(log.outcome.records_before or 0 for log in logs)
    expired = sum(log.outcome.expired.records or 0 for log in logs)
    removed = expired + sum(sum(log.outcome.removed.values()) for log in logs)
    return (
        f"{len(logs):,} {of_all} would be cleaned: {size_text(before)} → {size_text(after)}, "
        f"{removed:,} of {counted(total, 'record')} removed" + (f" ({expired:,} expired)" if expired else "")
    )


def _explanation_row(log: LogExplanation) -> Sequence[object]:
    outcome = log.outcome
    removed = {**outcome.removed, "expired": outcome.expired.records}
    return [
        log.name,
        output.status_text(log.status),
        output.change_text(log.bytes_before, _known(log.bytes_after, log.bytes_before), size_text),
        output.change_text(outcome.records_before, _known(outcome.records_after, outcome.records_before)),
        *(removed.get(reason) or None for reason in REASONS),
        log.keys.distinct_keys,
        None if log.range.dirty_ratio is None else f"{log.range.dirty_ratio:.3f}",
        None if log.keys.kafka is None else log.keys.kafka.passes,
    ]


def _known(number: int | None, otherwise: int | None) -> int | None:
    """The number, or ``otherwise`` if it is not known."""
    return otherwise if number is None else number


def _show_log(log: LogExplanation) -> None:
    cleanable, outcome, kafka = log.range, log.outcome, log.keys.kafka
    bounds = ", ".join(f"{bound.name} {bound.offset:,}" for bound in cleanable.bounds)
    dirty_range = f"{cleanable.first_dirty_offset:,} to {cleanable.first_uncleanable_offset:,}"
    output.write_lines(f"{log.name}: dirty offsets {dirty_range}, bounded by {bounds}")
    if kafka is not None:
        passes = "1 pass" if kafka.passes == 1 else f"at least {kafka.passes} passes"
        output.write_lines(
            f"{log.name}: Kafka would need {passes}: {log.keys.distinct_dirty_keys:,} dirty keys, its map "
            f"holds {kafka.map_keys:,} ({size_text(kafka.buffer_bytes)})"
        )
    discarded = "".join(f", {name} {size_text(size)}" for name, size in outcome.removed_bytes.items() if size)
    output.write_lines(f"{log.name}: record bytes: retained {size_text(outcome.kept_bytes)}{discarded}")
    for waiting in outcome.tombstones_waiting:
        text = f"may be removed from {time_text(waiting.at_ms)} on"
        if waiting.at_ms == NOT_STAMPED:
            text = "have no delete horizon yet"
        elif waiting.at_ms == KEPT_BY_LEDGER:
            text = "stay until the next side-by-side compaction has applied them to the compacted ledger"
        size = size_text(waiting.bytes)
        count = counted(waiting.tombstones, "tombstone")
        output.write_lines(f"{log.name}: {count} ({size}) {text}")
    groups = [
        (
            group.base_offset,
            group.segments,
            size_text(group.bytes_before),
            size_text(group.bytes_after),
            group.records_after,
        )
        for group in outcome.groups[:GROUPS_MAX]
    ]
    more = len(outcome.groups) - len(groups)
    title = f"{log.name}: groups" + (f" ({more} more)" if more else "")
    output.write_table(title, ("base offset", "segments", "before", "after", "retained records"), groups)


def _show_keys(log: LogExplanation) -> None:
    keys = [
        (key.key, key.key_size, key.records, key.superseded, size_text(key.superseded_bytes), key.last_offset)
        for key in log.keys.hottest_keys
    ]
    if keys:
        names = ("hottest key", "key bytes", "records", "superseded", "their bytes", "last offset")
        output.write_table(f"{log.name}: hottest keys", names, keys)


_BEFORE_AFTER_ADVICE = (
    "pass BEFORE AFTER, or for several log directories --before DIR and --after DIR, each repeated"
)


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyFlags(review.VerifyRequest):
    """The request as flags.

    Parameters
    ----------
    before
        For several log directories: one from before the cleaning, as BEFORE; repeat it.
    after
        For several log directories: a cleaned one; repeat it.
    """

    before: Sequence[Path] = ()
    after: Sequence[Path] = ()
    topics: output.Topics = ()


def verify(
    before_and_after: Annotated[Sequence[Path], Parameter(name="BEFORE AFTER")] = (),
    /,
    *,
    flags: VerifyFlags = VerifyFlags(),
    stores: output.StoreFlags = output.StoreFlags(),
    server: output.ServerFlags = output.ServerFlags(),
    json_: output.Json = False,
) -> int:
    """Check cleaned log directories against what they were before, independently of what cleaned them.

    The last value of each key, order, offsets, tombstones, transactions, producers' last batches, indexes and
    checksums. Nothing is locked or changed. Exit status 1 when a log has a problem. With --bootstrap-server
    every batch of a running broker's topics is fetched and checked by itself, without BEFORE and AFTER.

    Parameters
    ----------
    before_and_after
        BEFORE: a copy of the log directory from before the cleaning (hard links will do), or the folder
        KEEP/RUN that clean --keep-originals KEEP made; RUN is the run's name. AFTER: the cleaned directory,
        or the copy that clean --out made. A broker with several log.dirs: pass each as --before and --after
        instead.
    json_
        Print one JSON document.
    """
    config = server.client_properties()
    if server.bootstrap_server is not None:
        others = replace(flags, topics=()) != VerifyFlags() or stores != output.StoreFlags()
        reason = "--bootstrap-server, and what is for BEFORE and AFTER"
        output.refuse_if(before_and_after or others, reason, "pass only --topic, --command-config and --json")
        return _verify_at_a_broker(server.bootstrap_server, config, flags.topics, as_json=json_)
    if before_and_after:
        wrong = len(before_and_after) != 2 or flags.before or flags.after
        output.refuse_if(wrong, "not one BEFORE and one AFTER", _BEFORE_AFTER_ADVICE)
        before, after = before_and_after
        flags = replace(flags, before=[before], after=[after])
    output.refuse_if(not (flags.before and flags.after), "no BEFORE, or no AFTER", _BEFORE_AFTER_ADVICE)
    flags = replace(flags, before=with_remotes(flags.before, stores.remote))
    verdict = review.verify(flags)
    if json_:
        output.write_json(verdict.to_json())
    else:
        _show_verdict(verdict)
    return 0 if verdict.is_sound else 1


def _verify_at_a_broker(
    bootstrap_server: str, config: Mapping[str, str], topics: Sequence[str], *, as_json: bool
) -> int:
    """Check the batches that a running broker has; the exit status."""
    from siltstone.broker.remote_records import PartitionFetcher, check_partition

    with PartitionFetcher(bootstrap_server, config) as broker:
        logs = [check_partition(broker, partition) for partition in broker.partitions(topics)]
    is_sound = all(log.is_sound for log in logs)
    if as_json:
        status = "ok" if is_sound else "problems"
        output.write_json({"status": status, "logs": [log.to_json() for log in logs], "notes": [NOT_SEEN]})
    else:
        names = ("log", "verdict", "offsets", "batches", "records", "bytes", "largest timestamp")
        output.write_table("batches that the broker sends", names, map(_fetched_row, logs), left=3)
        for log in logs:
            output.write_wrapped(*_problem_lines(log, FETCHED_PROBLEM_KINDS))
        _show_count(logs)
        output.note(NOT_SEEN)
    return 0 if is_sound else 1


def _fetched_row(log: FetchedVerdict) -> Sequence[object]:
    offsets = None if log.log_start_offset is None else f"{log.log_start_offset} to {log.high_watermark}"
    newest = None if log.largest_timestamp is None else time_text(log.largest_timestamp)
    counts = (log.batches, log.records, size_text(log.bytes))
    return [log.name, _verdict_text(log), offsets, *counts, newest]


def _problem_lines(log: LogVerdict | FetchedVerdict, kinds: Mapping[str, str]) -> Iterator[str]:
    """The problems of a log, how many there are of each kind, and its notes."""
    counts = (f"{count} of {kind}: {kinds[kind]}" for kind, count in sorted(log.found.items()))
    return (f"{log.name}: {text}" for text in (*log.problems, *counts, *log.notes))


def _show_count(logs: Sequence[LogVerdict | FetchedVerdict]) -> None:
    wrong = sum(not log.is_sound for log in logs)
    count = counted(len(logs), "log")
    output.write_lines(f"{count} checked; {wrong:,} with problems" if wrong else f"{count} checked, all ok")


def _verdict_text(log: LogVerdict | FetchedVerdict) -> str:
    problems = sum(log.found.values())
    return "ok" if log.is_sound else f"{problems} problem{'s' if problems > 1 else ''}"


def _show_verdict(verdict: Verdict) -> None:
    names = ("log", "verdict", "cleaned offsets", "before", "after", "keys", *VERIFIED_REASONS)
    output.write_table("compared with the state before", names, map(_verdict_row, verdict.logs), left=3)
    output.write_wrapped(*output.reason_lines(_without_partner(verdict.logs)))
    for log in verdict.logs:
        if log.found.keys() <= _WITHOUT_PARTNER:
            output.write_wrapped(*(f"{log.topic}-{log.partition}: {text}" for text in log.notes))
            continue
        output.write_wrapped(*_problem_lines(log, PROBLEM_KINDS))
    _show_count(verdict.logs)
    output.note(*verdict.notes)


_WITHOUT_PARTNER = {"log_missing", "log_unknown"}
"""Kinds of problems of a log that only one side has."""


def _without_partner(logs: Iterable[LogVerdict]) -> Iterator[tuple[tuple[str, str], object]]:
    """((kind, what it means), log) of each log that only one side has, for ``output.reason_lines``."""
    for log in logs:
        for kind in log.found.keys() & _WITHOUT_PARTNER:
            yield (kind, PROBLEM_KINDS[kind]), f"{log.topic}-{log.partition}"


def _verdict_row(log: LogVerdict) -> Sequence[object]:
    cleaned_offsets = None
    if log.first_dirty_offset is not None:
        cleaned_offsets = f"{log.first_dirty_offset} to {log.cleaned_end_offset}"
    discarded = [log.removed.get(reason) or None for reason in VERIFIED_REASONS]
    counts = [log.records_before, log.records_after, log.distinct_keys]
    return [f"{log.topic}-{log.partition}", _verdict_text(log), cleaned_offsets, *counts, *discarded]
