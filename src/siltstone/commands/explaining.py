"""A dry run of a topic's cleaning as a job of a server: what would go, and why; and the sentences with which
the console describes what a dry run or a cleaning removed.

Nothing is changed, so it works in look mode (``serve --look``), too. An open log is explained with what the
log manager knows of it (its end, its checkpoint), in look mode from its files, as ``siltstone explain``
does. Keys are never shown. A log that is not eligible yet (``min.cleanable.dirty.ratio``) is explained as
if it were.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from siltstone.commands.cluster import partition_named, partitions_of
from siltstone.commands.explain_page import counted, size_text
from siltstone.commands.jobs import DONE, BackgroundJob, Progress, job_target
from siltstone.commands.review import ExplainRequest, engine_for, explain
from siltstone.commands.served import Served
from siltstone.compaction import engine
from siltstone.compaction.explain import ExplainOptions, LogExplanation, explain_logs
from siltstone.compaction.inplace.planning import LogState, PlanOptions
from siltstone.compaction.report import FAILED, UNCLEANABLE
from siltstone.log.names import TopicPartition
from siltstone.runtime.log_cleaner import log_state

CLEAN, EXPLAIN = "clean", "explain"
"""The kinds of jobs that ``outcome_words`` describes."""
GROUPS_MAX = 100
"""The most segment groups of a log that a result lists; ``groups_left`` says how many more there are."""
REASON_WORDS = {
    "superseded": (
        "older record of a key that has a newer one",
        "older records of keys that have a newer one",
    ),
    "tombstones": (
        "tombstone (deletion) whose time has passed",
        "tombstones (deletions) whose time has passed",
    ),
    "aborted": ("record of an aborted transaction", "records of aborted transactions"),
    "keyless": ("record without a key", "records without a key"),
    "markers": (
        "marker of a transaction that has no record left",
        "markers of transactions that have no records left",
    ),
    "expired": ("record in a segment that retention took", "records in segments that retention took"),
}
"""Descriptions of removed records by reason, for one record and for several."""


def removal_words(removed: Mapping[str, int]) -> str:
    """``1,200 older records of keys that have a newer one, 3 records without a key``; empty if nothing
    goes."""
    words = {name: counted(count, *REASON_WORDS.get(name, (name, name))) for name, count in removed.items()}
    return ", ".join(words[name] for name, count in removed.items() if count)


def outcome_words(job: BackgroundJob) -> str:
    """A sentence on the result of a cleaning or a dry run; empty for other jobs."""
    result = job.result
    if job.state != DONE or job.kind not in (CLEAN, EXPLAIN) or not isinstance(result, dict):
        return ""
    logs, counts = result["logs"], Counter[str]()
    if not logs:
        return "No log was due, so none was cleaned"
    for log in logs:
        counts.update(log["removed"])
    sizes = [(log["bytes_before"], log["bytes_after"]) for log in logs if log["bytes_after"] is not None]
    before, after = (sum(side) for side in zip(*sizes, strict=True)) if sizes else (0, 0)
    words, would = removal_words(counts) or "nothing", "would be " if job.kind == EXPLAIN else ""
    text = f"{words} {would}removed" + (f"; {size_text(before)} → {size_text(after)}" if sizes else "")
    failed = [log for log in logs if log["status"] in (FAILED, UNCLEANABLE)]
    return f"{text}; {len(failed)} of {len(logs)} logs failed: {failed[0]['reason']}" if failed else text


def explain_topic(served: Served, user: str, topic: str, partitions: Sequence[int] = ()) -> BackgroundJob:
    """Explain a topic, or only its ``partitions`` if there are any, as a job. Its result has what ``siltstone
    explain --json`` has of each log, without settings. Raises UnknownTopicError, BusyError, SiltstoneError,
    OSError."""
    chosen = [partition_named(served, topic, number) for number in partitions]
    chosen = chosen or [TopicPartition(topic, number) for number in partitions_of(served, topic)]

    def work(progress: Progress) -> object:
        def report(log: str, stage: str, done: int, total: int) -> None:
            progress.check()
            progress(log, stage, done, total)

        logs = (
            _explain_snapshot(served, chosen, report)
            if served.manager is None
            else _explain_open_logs(served, chosen, report)
        )
        progress.check()
        return {
            "logs": [_document(log) for log in sorted(logs, key=lambda log: log.topic_partition.partition)]
        }

    return served.jobs.submit(EXPLAIN, job_target(topic, partitions), user, work)


def last_explanation(served: Served, topic: str) -> BackgroundJob | None:
    """The newest dry run of a whole topic, which may still run; None if there was none. (Those of single
    partitions have another target; ``all`` is newest first.)"""
    jobs = (job for job in served.jobs.all() if (job.kind, job.target) == (EXPLAIN, topic))
    return next(jobs, None)


def _explain_snapshot(
    served: Served, chosen: Sequence[TopicPartition], report: engine.Progress
) -> Sequence[LogExplanation]:
    """Explain logs in look mode, from their files."""
    request = ExplainRequest(
        directories=served.paths,
        topics=(chosen[0].topic,),
        broker_config=served.options.properties,
        engine=served.options.engine,
        now_ms=served.clock.now_ms(),
    )
    return [log for log in explain(request, progress=report).logs if log.topic_partition in chosen]


def _explain_open_logs(
    served: Served, chosen: Sequence[TopicPartition], report: engine.Progress
) -> Sequence[LogExplanation]:
    """Explain open logs, from the manager's state of them."""
    states = list[LogState]()
    for directory, log in served.opened().logs():
        topic_partition = log.topic_partition
        if topic_partition in chosen:
            config = served.settings_of(topic_partition.topic)
            states.append(
                log_state(directory, log, config, directory.cleaner_checkpoint().get(topic_partition))
            )
    request = ExplainRequest(engine=served.options.engine)
    options = ExplainOptions(plan_options=PlanOptions(now_ms=served.clock.now_ms()))
    return explain_logs(states, options, cache(lambda: engine_for(request, states, report)))


def _document(log: LogExplanation) -> dict[str, Any]:
    """One log of the job's result: its explanation without settings, with ``GROUPS_MAX`` groups at most."""
    document = log.to_json()
    del document["settings"]
    groups = document["groups"]
    return {
        **document,
        "groups": groups[:GROUPS_MAX],
        "groups_left": max(len(groups) - GROUPS_MAX, 0),
        "removed_words": removal_words(log.outcome.removed),
    }
