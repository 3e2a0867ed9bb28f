"""Asking for an explanation in this process, and the plain twin of what it counts."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

from siltstone.commands import review
from siltstone.compaction.explain import Explanation, LogExplanation
from tests.support.operator.staged import Staged
from tests.support.records import twin


def asked(staged: Staged, **changes: Any) -> review.ExplainRequest:
    """What explains a staged round, as its cleaning would go by it."""
    given: dict[str, Any] = {
        "directories": [staged.directory],
        "topics": staged.request.topics,
        "config": staged.request.config,
        "now_ms": staged.request.now_ms,
        "no_spark": True,
    }
    return review.ExplainRequest(**{**given, **changes})


def explained(staged: Staged, **changes: Any) -> LogExplanation:
    """The one log's explanation."""
    (log,) = explanation(staged, **changes).logs
    return log


def explanation(staged: Staged, **changes: Any) -> Explanation:
    """All of it."""
    return review.explain(asked(staged, **changes))


def records_by_key(partition: Path, end: int) -> dict[bytes, list[twin.Record]]:
    """The data records with a key below ``end``, by key in order of offset; plain logs only."""
    found: dict[bytes, list[twin.Record]] = defaultdict(list)
    for path in sorted(partition.glob("*.log")):
        if int(path.stem) < end:
            for batch in twin.decode_log(path.read_bytes()):
                for record in batch.records:
                    if record.key is not None:
                        found[record.key].append(record)
    return found
