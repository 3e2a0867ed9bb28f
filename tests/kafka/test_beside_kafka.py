"""The benchmark beside Kafka's cleaner on a tiny workload, end to end, without Spark."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from bench.beside_kafka import broker
from bench.beside_kafka.figures import Measured, Results, break_even, markdown
from bench.beside_kafka.producing import Made
from bench.beside_kafka.running import OtherRecordsError, Plan, measure
from bench.beside_kafka.workloads import NARROW, RecordMaker, Workload, chosen
from tests.support.in_memory import FOLDER
from tests.support.kafka.jars import JVM_FLAGS

pytestmark = pytest.mark.kafka

TINY = Workload(
    name="tiny",
    records=30_000,
    keys=4_000,
    partitions=2,
    idle_partitions=1,
    codec="lz4",
    segment_bytes=1 << 20,
    updates=2_000,
    recent=True,
)
MADE = Made(shape={}, kafka="", size=10_000_000, ends=[1], expected=[1])


@pytest.mark.long  # the benchmark as a whole, which starts five Javas
def test_both_cleaners_leave_the_same_records_and_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker, "START_SCRIPT_FLAGS", JVM_FLAGS)  # no figure is kept
    plan = Plan(runs=1, sides=("kafka-tuned", "in-process", "copy"), caches=("hot",))
    results = measure(TINY, tmp_path, plan)
    (kafka,), (ours,) = results.runs["kafka-tuned", "hot"], results.runs["in-process", "hot"]
    assert kafka.passes == 1
    for measured in (kafka, ours):
        assert 0 < measured.own <= measured.wall + 0.2
        assert min(measured.processor, measured.memory) > 0
        assert measured.written > 0 or (FOLDER is not None and tmp_path.is_relative_to(FOLDER))
    assert kafka.disk > 0, "what Kafka replaces stays for a minute"
    assert "| in-process | hot | " in markdown(results)

    facts = json.loads((tmp_path / "made.json").read_text())
    facts["expected"][0] += 1
    (tmp_path / "made.json").write_text(json.dumps(facts))
    with pytest.raises(OtherRecordsError, match="expected"):
        measure(TINY, tmp_path, replace(plan, sides=("in-process",)))


def test_records_come_of_the_seed_and_their_keys_are_counted() -> None:
    first, again = (RecordMaker(TINY, 2, 1) for _ in range(2))
    chunks = [*first.first(), *first.updates()]
    assert chunks == [*again.first(), *again.updates()]
    for partition in range(2):
        keys = {key for chunk in chunks if chunk.partition == partition for key in chunk.keys}
        assert len(keys) == first.distinct(partition) > 1900
    sizes = {
        (len(key), len(value))
        for chunk in chunks
        for key, value in zip(chunk.keys, chunk.values, strict=True)
    }
    assert sizes == {(TINY.key_size, TINY.value_size)}


def test_scaled_keeps_the_shape() -> None:
    (narrow,) = chosen("narrow")
    assert narrow == NARROW
    tenth = narrow.scaled(0.1)
    assert (tenth.records, tenth.keys, tenth.value_size) == (800_000, 100_000, 98)
    with pytest.raises(ValueError, match="no workload other"):
        chosen("narrow,other")


def _results(size: int, kafka: float, ours: float) -> Results:
    runs = {("kafka-tuned", "hot"): [Measured(wall=kafka)], ("spark", "hot"): [Measured(wall=ours)]}
    return Results(workload=NARROW, made=replace(MADE, size=size * 1_000_000), runs=runs)


def test_break_even_lies_between_the_sizes_around_it() -> None:
    results = [_results(1, 0.5, 1.0), _results(4, 1.0, 0.5)]
    assert break_even(results, "hot")["kafka-tuned"] == pytest.approx(2.0)
    assert break_even(results[1:], "hot")["kafka-tuned"] == 4
    assert break_even(results[:1], "hot")["kafka-tuned"] is None


def test_a_goal_that_is_missed_is_called_so() -> None:
    assert "goal 5x: not reached" in markdown(_results(900, 4.0, 1.0))
    assert "goal 5x: reached" in markdown(_results(900, 5.0, 1.0))
