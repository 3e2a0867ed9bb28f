"""Up to where a log may be compacted."""

from __future__ import annotations

import pytest

from siltstone.compaction.ledger.work import compactable_end
from siltstone.log.fetch import LogView


@pytest.mark.parametrize(
    ("log_start", "high_watermark", "last_stable", "end"),
    [
        (0, 9, 9, 9),
        (0, 7, 9, 7),  # replicated up to 7
        (0, 9, 5, 5),  # a transaction is open from 5 on
        (6, 9, 5, 6),  # and was given up in part
    ],
)
def test_the_end_is_what_is_replicated_and_decided_but_not_below_the_start(
    log_start: int, high_watermark: int, last_stable: int, end: int
) -> None:
    assert compactable_end(LogView((), log_start, 10, high_watermark, last_stable, 0)) == end
