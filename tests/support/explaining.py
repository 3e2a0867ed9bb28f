"""Explanations made in this process, and the plain twin of what they count."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

from siltstone.commands import review
from siltstone.compaction.explain import Explanation, LogExplanation
from tests.support.operator.staged import Staged
from tests.support.records import twin


def explain_request(staged: Staged, **changes: Any) -> review.ExplainRequest:
    """The request that explains a staged round, with the settings of its cleaning."""
    defaults: dict[str, Any] = {
        "directories": [staged.directory],
        "topics": staged.request.topics,
        "config": staged.request.config,
        "now_ms": staged.request.now_ms,
        "no_spark": True,
    }
    return review.ExplainRequest(**{**defaults, **changes})


def explain_one(staged: Staged, **changes: Any) -> LogExplanation:
    """The one log's explanation."""
    (log,) = explain_all(staged, **changes).logs
    return log


def explain_all(staged: Staged, **changes: Any) -> Explanation:
    """The explanation of the whole directory."""
    return review.explain(explain_request(staged, **changes))


def records_by_key(partition: Path, end: int) -> dict[bytes, list[twin.Record]]:
    """The data records with a key below ``end``, by key in order of offset; plain logs only."""
    records: dict[bytes, list[twin.Record]] = defaultdict(list)
    for path in sorted(partition.glob("*.log")):
        if int(path.stem) < end:
            for batch in twin.decode_log(path.read_bytes()):
                for record in batch.records:
                    if record.key is not None:
                        records[record.key].append(record)
    return records
