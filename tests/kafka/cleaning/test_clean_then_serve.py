"""A broker writes, `siltstone clean --in-place` cleans, the same broker serves it, nothing else
changed; then its own cleaner goes on from our checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.kafka import clients, tools
from tests.support.kafka.logdir import active_base, cleaner_checkpoint, listing, stray_files
from tests.support.kafka.records import Partition, Record, Sent, compacted, latest_values, workload
from tests.support.kafka.scenario import (
    BYSTANDER,
    CODECS,
    MD5_PAIR_TOPIC,
    PARTITIONS,
    RECORD_COUNT,
    Served,
    Written,
    md5_pair,
    start_ms,
)

pytestmark = pytest.mark.kafka

each_partition = pytest.mark.parametrize(
    "partition", PARTITIONS, ids=lambda partition: f"{partition[0]}-{partition[1]}"
)


@each_partition
def test_report_counts(
    partition: Partition, report: dict[Partition, dict[str, Any]], written: Written
) -> None:
    log, before, after = report[partition], written.records[partition], written.expected(partition)
    removed = {
        "superseded": len(before) - len(after),
        "tombstones": 0,
        "aborted": 0,
        "keyless": 0,
        "markers": 0,
        "expired": 0,
    }
    assert log["removed"] == removed
    assert (log["records_before"], log["records_after"]) == (len(before), len(after))
    assert (log["first_dirty_offset"], log["cleaned_end_offset"]) == (0, written.active_base(partition))


def test_report_names_every_log(report: dict[Partition, dict[str, Any]]) -> None:
    assert sorted(report) == sorted(PARTITIONS)


def test_dump_tool_finds_nothing_wrong(cleaned: Path) -> None:
    tools.assert_dump_clean(*(cleaned / f"{topic}-{number}" for topic, number in PARTITIONS))


@each_partition
def test_checkpoint_is_the_active_base(partition: Partition, cleaned: Path, written: Written) -> None:
    assert cleaner_checkpoint(cleaned, *partition) == written.active_base(partition)


def test_other_topics_are_untouched(cleaned: Path, written: Written) -> None:
    for folder in (f"{BYSTANDER}-0", "__cluster_metadata-0"):
        assert listing(cleaned / folder) == listing(written.log_dir / folder)
    assert stray_files(cleaned) == []


@each_partition
def test_librdkafka_reads_what_the_model_says(partition: Partition, served: Served, written: Written) -> None:
    assert served.records[partition] == written.expected(partition)
    assert latest_values(served.records[partition]) == latest_values(written.records[partition])
    assert len(served.records[partition]) < len(written.records[partition])


def test_java_reads_what_the_model_says(
    served_by_java: dict[Partition, list[Record]], written: Written
) -> None:
    assert served_by_java == {partition: written.expected(partition) for partition in served_by_java}


def test_bystander_is_served_whole(served: Served, written: Written) -> None:
    assert served.records[BYSTANDER, 0] == written.records[BYSTANDER, 0]


@each_partition
def test_end_offset_is_unchanged(partition: Partition, served: Served, written: Written) -> None:
    assert served.ends[partition] == written.records[partition][-1].offset + 1


def test_two_keys_of_one_md5_both_survive(served: Served) -> None:
    values = latest_values(served.records[MD5_PAIR_TOPIC, 0])
    assert [values.get(key) for key in md5_pair()] == [b"value 0", b"value 1"]


def test_open_idempotent_producer_continues(
    served: Served, served_by_java: dict[Partition, list[Record]]
) -> None:
    """The producer has been open since before the cleaning: its sequence must still fit."""
    assert served_by_java
    _goes_on(served, ("idempotent", 0), lambda more: clients.send(served.producer, "idempotent", more))


@pytest.mark.parametrize("number", range(5))
def test_new_producer_continues(
    number: int, served: Served, served_by_java: dict[Partition, list[Record]]
) -> None:
    assert served_by_java
    _goes_on(
        served, ("codecs", number), lambda more: served.broker.produce("codecs", more, number, codec="zstd")
    )


def test_own_cleaner_begins_at_our_checkpoint(served: Served) -> None:
    """The last test of this file: it changes what the others read."""
    broker, log_dir = served.broker, served.broker.log_dirs[0]
    ours = {number: cleaner_checkpoint(log_dir, "codecs", number) for number in range(len(CODECS))}
    for number, codec in enumerate(CODECS):
        more = workload(
            seed=50 + number, prefix=f"codecs-{codec}", count=RECORD_COUNT, keys=200, start_ms=start_ms()
        )
        broker.produce("codecs", more, number, codec=codec)
    before = broker.consume_many([("codecs", number) for number in ours])
    ends = {number: active_base(log_dir, "codecs", number) for number in ours}
    broker.alter_config("codecs", min_cleanable_dirty_ratio="0.0")
    for number, end in ends.items():
        broker.wait_for_cleaner("codecs", number, offset=end)
        assert broker.cleaner_ranges("codecs", number) == [(ours[number], end)]
    after = broker.consume_many(before)
    for partition, records in after.items():
        assert records == compacted(before[partition], ends[partition[1]])


def _goes_on(served: Served, partition: Partition, send: Any) -> None:
    """`send` gets the next offsets, and all records are served, old and new."""
    more = [Sent(b"more-%d" % number, b"x", (("h", b"1"),), start_ms() + number) for number in range(30)]
    end = served.ends[partition]
    assert send(more) == list(range(end, end + len(more)))
    added = [Record(end + number, sent.timestamp_ms, *sent[:3]) for number, sent in enumerate(more)]
    assert served.broker.consume_all(*partition) == served.records[partition] + added
