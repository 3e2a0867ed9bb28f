"""The naive oracle, held to Kafka itself: it foretells what Kafka's cleaner made of every golden set.

Random logs are held to the oracle (``tests/property/test_cleaned_logs.py``); this says that it is worth it.
"""

from __future__ import annotations

from pathlib import Path

from tests.support import golden_sets
from tests.support.cleaning import naive, oracle
from tests.support.cleaning.judging import differences
from tests.support.thoroughness import share

EXPIRATION_MS = 86_400_000
BUFFER, LOAD = "log.cleaner.dedupe.buffer.size", "log.cleaner.io.buffer.load.factor"
MAP_ENTRY = 24
"""Bytes of a key in Kafka's map, which ends a pass when it is full."""


def rules_of(case: golden_sets.Case, round_: golden_sets.Round, now_ms: int) -> oracle.Cleaning:
    """A round's settings, as the oracle takes them."""
    config, before = round_.command_config, round_.checkpoints_before
    return oracle.Cleaning(
        now_ms=now_ms,
        checkpoint=before["cleaner-offset-checkpoint"],
        log_start=before["log-start-offset-checkpoint"] or 0,
        high_watermark=before["replication-offset-checkpoint"],
        delete_retention_ms=int(config["delete.retention.ms"]),
        min_lag_ms=int(config["min.compaction.lag.ms"]),
        segment_bytes=int(config["segment.bytes"]),
        index_bytes=int(config["segment.index.bytes"]),
        producer_expiration_ms=EXPIRATION_MS,
        key_limit=int(case.broker.get(BUFFER, 128 << 20) // MAP_ENTRY * case.broker.get(LOAD, 0.9)),
    )


def differs(case: golden_sets.Case, round_: golden_sets.Round, directory: Path) -> list[str]:
    """What the oracle foretells otherwise than Kafka did it."""
    assert round_.after is not None and round_.now_ms is not None
    golden_sets.stage_round(case, round_, directory)
    partition = golden_sets.partition_directory(case, directory)
    expected = oracle.clean(partition, rules_of(case, round_, round_.now_ms))
    kafkas = naive.read_partition(round_.after)
    end = round_.checkpoints_after["cleaner-offset-checkpoint"]
    assert expected.end == end, (expected.end, end)
    lowest = min(kafkas)
    expected.segments = {base: new for base, new in expected.segments.items() if base >= lowest}
    return differences(expected, {base: kafkas[base] for base in kafkas if base < expected.end})


def rounds_of(root: Path) -> list[tuple[golden_sets.Case, golden_sets.Round]]:
    """Every round that Kafka cleaned."""
    cases = [golden_sets.load_case(root, name) for name in golden_sets.case_names(root)]
    return [(case, round_) for case in cases for round_ in case.rounds if round_.cleaned]


def test_the_oracle_foretells_every_round(golden: Path, tmp_path: Path) -> None:
    rounds = rounds_of(golden)
    assert len(rounds) >= 50
    wrong = {
        f"{case.name} round {round_.number}": mismatches
        for number, (case, round_) in enumerate(share(rounds, 4))
        if (mismatches := differs(case, round_, tmp_path / str(number)))
    }
    assert wrong == {}


def old_differs(case: golden_sets.Case, round_: golden_sets.Round, after: Path, directory: Path) -> list[str]:
    """The same for a log of the old formats; Kafka's clock is in the horizons that it stamped."""
    golden_sets.stage_round(case, round_, directory)
    kafkas = naive.read_partition(after)
    stamps = [batch.horizon or 0 for segment in kafkas.values() for batch in segment.batches]
    now_ms = max(stamps) - int(round_.config["delete.retention.ms"])
    expected = oracle.clean(golden_sets.partition_directory(case, directory), rules_of(case, round_, now_ms))
    return differences(expected, {base: kafkas[base] for base in kafkas if base < expected.end})


def test_the_oracle_foretells_what_becomes_of_old_formats(golden: Path, tmp_path: Path) -> None:
    names = golden_sets.legacy_names(golden)
    assert len(names) > 10
    wrong = {}
    for name in names:
        case = golden_sets.load_case(golden, name)
        mismatches = old_differs(case, case.rounds[0], case.path / "after_43", tmp_path / case.path.name)
        wrong.update({name: mismatches} if mismatches else {})
    assert wrong == {}
