"""A real broker's own cleaner and ours on twin copies of random directories: the same bytes, twice in a row.

The second time the log holds what Kafka's first cleaning left: stamps, empty batches, markers without data.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from siltstone.compaction.report import CLEANED
from tests.support.cleaning import judging, oracle
from tests.support.cleaning.naive import read_partition
from tests.support.kafka.broker import HostedBroker
from tests.support.kafka.logdir import cleaner_checkpoint, copy_of, segment_bases
from tests.support.kafka.twins import (
    TOPICS,
    RandomTopic,
    TopicWriter,
    Twins,
    assert_same_files,
    clean,
    end_of_cleaning,
    let_the_broker_clean,
)

pytestmark = pytest.mark.kafka

each_topic = pytest.mark.parametrize("topic", TOPICS, ids=lambda topic: topic.name)
each_time = pytest.mark.parametrize("time", [0, 1], ids=["first", "second"])


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> list[Twins]:
    """Written, stopped, copied, cleaned by the broker, twice; what the broker cleans it goes on with."""
    root = tmp_path_factory.mktemp("twins")
    pairs = []
    with HostedBroker(root / "live") as broker:
        for topic in TOPICS:
            broker.create_topic(topic.name, 1, topic.config)
        writers = [TopicWriter(broker, topic) for topic in TOPICS]
        for time in range(2):
            for writer in writers:
                writer.write(50 - 30 * time)
            broker.stop()
            before = copy_of(broker.log_dirs[0], root / f"before-{time}")
            broker.start()
            let_the_broker_clean(broker, before)
            pairs.append(Twins(before=before, after=copy_of(broker.log_dirs[0], root / f"after-{time}")))
    return pairs


@each_time
@each_topic
def test_both_cleaners_leave_the_same_bytes(
    topic: RandomTopic, time: int, twins: list[Twins], tmp_path: Path
) -> None:
    twin = twins[time]
    now_ms, end = twin.now_ms(topic), end_of_cleaning(twin.before, topic)
    ours = copy_of(twin.before, tmp_path / "ours")
    result = clean(ours, topic, now_ms)
    assert result.status == CLEANED, result.reason
    assert result.cleaned_end_offset == end == cleaner_checkpoint(twin.after, topic.name)
    assert cleaner_checkpoint(ours, topic.name) == end
    interval = int(topic.config["index.interval.bytes"])
    assert_same_files(ours / f"{topic.name}-0", twin.after / f"{topic.name}-0", end, interval)


@each_time
@each_topic
def test_the_oracle_foretells_both(topic: RandomTopic, time: int, twins: list[Twins]) -> None:
    twin = twins[time]
    expected = oracle.clean(twin.before / f"{topic.name}-0", twin.rules(topic, twin.now_ms(topic)))
    after = read_partition(twin.after / f"{topic.name}-0")
    assert judging.differences(expected, {base: after[base] for base in after if base < expected.end}) == []


def test_an_open_transaction_ends_the_range(twins: list[Twins]) -> None:
    for topic in TOPICS:
        bases = segment_bases(twins[0].before, topic.name)
        assert (end_of_cleaning(twins[0].before, topic) < bases[-1]) == topic.open, topic.name


def test_the_topics_had_something_to_clean(twins: list[Twins]) -> None:
    for topic in TOPICS:
        assert len(segment_bases(twins[0].before, topic.name)) >= 4, topic.name
    aborted, markers, empty = 0, 0, 0
    for topic in TOPICS:
        for segment in read_partition(twins[1].after / f"{topic.name}-0").values():
            aborted += len(segment.aborted)
            markers += sum(batch.control and batch.horizon is not None for batch in segment.batches)
            empty += sum(not batch.count for batch in segment.batches)
    assert min(aborted, markers, empty) > 0, (aborted, markers, empty)
