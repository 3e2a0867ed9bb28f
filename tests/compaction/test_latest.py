"""The last record of each key of what a reader reads."""

from __future__ import annotations

from typing import Any

import pytest

from siltstone.compaction import latest
from siltstone.compaction.keys import KeyCollector
from siltstone.compaction.latest import ENTRY_BYTES, last_offsets_of_keys


def test_entries_are_collected_within_the_memory_that_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    capacities = []

    def collector(*, capacity: int, **options: Any) -> KeyCollector:
        capacities.append(capacity)
        return KeyCollector(capacity=capacity, **options)

    monkeypatch.setattr(latest, "KeyCollector", collector)
    assert len(last_offsets_of_keys([], 64 * ENTRY_BYTES)) == 0
    assert capacities == [64]
