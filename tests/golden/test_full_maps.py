"""Cleanings that Kafka's key map was too small for: with the same end of the map, the files are Kafka's.

Where the map was full is worked out here from the records, key by key; our own cleaning has no such end.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from siltstone.base import files
from siltstone.base.config import LONG_MAX
from siltstone.base.records.decode import decode_records
from siltstone.log.directory import LogDirectory
from siltstone.log.segments import list_segments, windows
from tests.support import golden_sets
from tests.support.golden.rounds import WAYS, clean_and_compare, clean_round

NAMES = ["map_full", "map_full_lz4"]
ENTRY_BYTES = 24
BUFFER = ("log.cleaner.dedupe.buffer.size", "log.cleaner.io.buffer.load.factor")


def _keys_in_map(case: golden_sets.Case) -> int:
    size, load_factor = (float(case.broker[name]) for name in BUFFER)
    return int(int(size) // ENTRY_BYTES * load_factor)


def _map_end(directory: Path, start: int, end: int, keys: int) -> int:
    """The offset after the last record that fits into a map of so many keys, ``LONG_MAX`` if all do."""
    known: set[bytes] = set()
    last = start - 1
    for segment in list_segments(directory):
        with files.Reader(segment.path) as reader:
            for window in windows(reader):
                columns = decode_records(window.data, window.batches)
                inside = np.flatnonzero((columns.offset >= start) & (columns.offset < end))
                for row in inside.tolist():
                    key = columns.key(row)
                    if key is None:
                        continue
                    if len(known) >= keys:
                        return last + 1
                    known.add(key)
                    last = int(columns.offset[row])
    return LONG_MAX


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", NAMES)
def test_each_pass_of_a_full_map_ends_as_kafkas(cleaned: Path, tmp_path: Path, name: str, way: str) -> None:
    case = golden_sets.load_case(cleaned, f"map_full/{name}")
    ended = []
    for round_ in case.rounds:
        start = round_.checkpoints_before["cleaner-offset-checkpoint"] or 0
        end = round_.raw["offset_map"][0]["to"]
        map_end = _map_end(round_.before, start, end, _keys_in_map(case))
        assert min(map_end, end) == round_.checkpoints_after["cleaner-offset-checkpoint"]
        ended.append(map_end < end)
        clean_and_compare(case, round_, tmp_path / str(round_.number), way, map_end=map_end)
    assert any(ended)


@pytest.mark.parametrize("name", NAMES)
def test_our_cleaning_needs_one_pass(cleaned: Path, tmp_path: Path, name: str) -> None:
    case = golden_sets.load_case(cleaned, f"map_full/{name}")
    first = case.rounds[0]
    topic_partition = golden_sets.stage_round(case, first, tmp_path)
    assert first.now_ms is not None
    buffer = {name: str(case.broker[name]) for name in BUFFER}
    result = clean_round(topic_partition, {**first.command_config, **buffer}, first.now_ms, "whole")
    assert result.cleaned_end_offset == first.raw["offset_map"][0]["to"]
    assert result.kafka_passes is not None and 1 < result.kafka_passes <= len(case.rounds)
    with LogDirectory.open(topic_partition) as directory:
        assert list(directory.checkpoints().cleaner.values()) == [result.cleaned_end_offset]
