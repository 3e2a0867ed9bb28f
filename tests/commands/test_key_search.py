"""The search for a key finds what a reader finds, in every format, codec and transaction that real Kafkas
wrote."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from siltstone.commands.key_search import LOG, SearchedTopic, search_keys
from siltstone.log.names import TopicPartition
from siltstone.log.read_only import ReadOnlyLogs
from siltstone.log.reading import LogReader
from tests.support import golden_sets
from tests.support.golden.sets import CLEANED, OLD_FORMATS, TRANSACTIONS, old_format_rounds, one_of_each_kind

KEYS_ASKED = 12


def check_round(case: golden_sets.Case, round_: golden_sets.Round, root: Path) -> int:
    """Search for some keys of a log; how many records they have."""
    golden_sets.stage_round(case, round_, root)
    log = ReadOnlyLogs([root])[TopicPartition(case.topic, case.partition)]
    first = log.view.segments[0].base_offset  # what lies below the log start is on the disk, too
    whole = replace(log, view=log.view._replace(log_start_offset=first))
    values, tombstones = Counter[bytes | None](), Counter[bytes | None]()
    for polled in LogReader(whole):
        for row in range(len(polled)):
            counts = tombstones if polled.columns.value_size[row] < 0 else values
            counts[polled.columns.key(row)] += 1
    topic = SearchedTopic(name=case.topic, logs=[log], directories=[root])
    keys = [key for key in {**values, **tombstones} if key is not None]
    total = 0
    searched_keys = keys[:: max(len(keys) // KEYS_ASKED, 1)]
    for key, result in zip(searched_keys, search_keys(topic, searched_keys), strict=True):
        assert {place.kind for place in result.places} == {LOG}
        assert (result.values, result.tombstones) == (values[key], tombstones[key])
        total += result.values + result.tombstones
    assert search_keys(topic, [b"\x00\x00\x00\x01"])[0].places == (), "the key of a marker is no key"
    return total


@pytest.mark.parametrize("name", one_of_each_kind(CLEANED))
def test_every_record_of_a_key_is_found_in_every_golden_set(golden: Path, tmp_path: Path, name: str) -> None:
    case = golden_sets.load_case(golden, name)
    assert sum(check_round(case, round_, tmp_path / str(round_.number)) for round_ in case.rounds[:2]) > 0


@pytest.mark.parametrize("name", TRANSACTIONS)
def test_every_record_of_a_key_is_found_among_transactions(cleaned: Path, tmp_path: Path, name: str) -> None:
    case = golden_sets.load_case(cleaned, f"transactions/{name}")
    assert check_round(case, case.rounds[0], tmp_path / "0") > 0


@pytest.mark.parametrize("name", one_of_each_kind(OLD_FORMATS))
def test_every_record_of_a_key_is_found_in_old_formats(cleaned: Path, tmp_path: Path, name: str) -> None:
    case = golden_sets.load_case(cleaned, f"old_formats/{name}")
    rounds = old_format_rounds(case)[:2]
    assert sum(check_round(case, round_, tmp_path / str(round_.number)) for round_ in rounds) > 0
