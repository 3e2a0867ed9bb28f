"""``siltstone verify``: hold a cleaned directory to what it was before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from siltstone.cli.output import Json, Topics, note, write_json, write_line, write_table
from siltstone.commands import review
from siltstone.verify.findings import KINDS, REASONS, LogVerdict, Verdict

Side = Annotated[Path, Parameter(parse=False)]


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyFlags(review.VerifyRequest):
    """The request as flags; the two directories are arguments."""

    before: Side = Path()
    after: Side = Path()
    topics: Topics = ()


def verify(
    before: Path,
    after: Path,
    /,
    *,
    flags: VerifyFlags | None = None,
    json_: Json = False,
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
    verdict = review.verify(replace(flags or VerifyFlags(), before=before, after=after))
    if json_:
        write_json(verdict.to_json())
    else:
        _show(verdict)
    return 0 if verdict.is_sound else 1


def _show(verdict: Verdict) -> None:
    names = ("log", "verdict", "cleaned", "before", "after", "keys", *REASONS)
    write_table("checked against what it was before", names, [_row(log) for log in verdict.logs], left=3)
    for log in verdict.logs:
        for problem in log.problems:
            write_line(f"{log.topic}-{log.partition}: {problem}")
        for kind, count in sorted(log.found.items()):
            write_line(f"{log.topic}-{log.partition}: {count} of {kind}: {KINDS[kind]}")
        for text in log.notes:
            write_line(f"{log.topic}-{log.partition}: {text}")
    note(*verdict.notes)


def _row(log: LogVerdict) -> Sequence[object]:
    problems = sum(log.found.values())
    span = None
    if log.first_dirty_offset is not None:
        span = f"{log.first_dirty_offset} → {log.cleaned_end_offset}"
    gone = [log.removed.get(reason) or None for reason in REASONS]
    verdict = "ok" if log.is_sound else f"{problems} problem{'s' if problems > 1 else ''}"
    counts = [log.records_before, log.records_after, log.distinct_keys]
    return [f"{log.topic}-{log.partition}", verdict, span, *counts, *gone]
