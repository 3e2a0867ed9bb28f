"""``siltstone verify``: hold a cleaned directory to what it was before."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from siltstone.cli.output import note, write_json, write_line, write_table
from siltstone.commands import review
from siltstone.verify.findings import KINDS
from siltstone.verify.verdict import LogVerdict, Verdict

_MANY = Parameter(negative=(), consume_multiple=False)
_FLAG = Parameter(negative=())


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class VerifyFlags:
    """The flags of ``siltstone verify``.

    Parameters
    ----------
    topic
        Only this topic; may be given several times.
    config
        A topic setting that held, key=value; may be given several times; needs --topic.
    config_file
        A file of lines topic:key=value.
    policy_from_metadata
        The topics' own settings, from AFTER's __cluster_metadata-0 (KRaft).
    broker_config
        The broker's server.properties.
    now_ms
        The cleaning's clock, in ms: tombstones are then held to their horizons from both sides.
    high_watermark
        "end": the cleaning was to go beyond the high watermark's checkpoint.
    no_spark
        Check in this process.
    master
        The Spark master, or a Spark Connect server, sc://HOST:PORT.
    spill_dir
        Where Spark puts what does not fit in memory.
    """

    topic: Annotated[tuple[str, ...], _MANY] = ()
    config: Annotated[tuple[str, ...], _MANY] = ()
    config_file: Path | None = None
    policy_from_metadata: Annotated[bool, _FLAG] = False
    broker_config: Path | None = None
    now_ms: int | None = None
    high_watermark: str | None = None
    no_spark: Annotated[bool, _FLAG] = False
    master: str = review.DEFAULT_MASTER
    spill_dir: Path | None = None


def verify(
    before: Path,
    after: Path,
    /,
    *,
    flags: VerifyFlags | None = None,
    json_: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> int:
    """Check a cleaned log directory against what it was before, independently of what cleaned it.

    The last value of each key, order, offsets, tombstones, transactions, producers' last batches, indexes and
    checksums. Nothing is locked or changed. Exit status 1 when a log has a problem.

    Parameters
    ----------
    before
        A copy of the directory from before the cleaning (hard links will do), or what a run of clean
        --keep-originals kept: KEEP/RUN.
    after
        The cleaned directory, or the copy that clean --out made.
    json_
        Print one JSON document.
    """
    flags = flags or VerifyFlags()
    given = {each.name: getattr(flags, each.name) for each in fields(flags)}
    topics = given.pop("topic")
    found = review.verify(review.VerifyRequest(before=before, after=after, topics=topics, **given))
    if json_:
        write_json(found.to_json())
    else:
        _show(found)
    return 0 if found.is_sound else 1


def _show(found: Verdict) -> None:
    reasons = ("superseded", "tombstones", "aborted", "keyless", "markers", "expired")
    names = ("log", "verdict", "cleaned", "before", "after", "keys", *reasons)
    write_table("checked against what it was before", names, [_row(log) for log in found.logs], left=3)
    for log in found.logs:
        for problem in log.problems:
            write_line(f"{log.topic}-{log.partition}: {problem}")
        for kind, count in sorted(log.found.items()):
            write_line(f"{log.topic}-{log.partition}: {count} of {kind}: {KINDS[kind]}")
        for text in log.notes:
            write_line(f"{log.topic}-{log.partition}: {text}")
    note(*found.notes)


def _row(log: LogVerdict) -> list[object]:
    problems = sum(log.found.values())
    span = None
    if log.first_dirty_offset is not None:
        span = f"{log.first_dirty_offset} → {log.cleaned_end_offset}"
    reasons = ("superseded", "tombstones", "aborted", "keyless", "markers", "expired")
    gone = [log.removed.get(name) or None for name in reasons]
    verdict = "ok" if log.is_sound else f"{problems} problem{'s' if problems > 1 else ''}"
    counts = [log.records_before, log.records_after, log.distinct_keys]
    return [f"{log.topic}-{log.partition}", verdict, span, *counts, *gone]
