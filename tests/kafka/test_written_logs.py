"""Logs that Siltstone wrote from empty serve a real broker, and a real broker's logs serve Siltstone.

One directory goes back and forth: real clients write `theirs` to a broker; Siltstone reads that and goes on,
and makes the partitions of `ours` anew; the broker starts on both and goes on; Siltstone reads what came.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import siltstone as st
from siltstone.base.records.build import NewBatchHeader
from siltstone.base.records.control import end_transaction_marker
from siltstone.base.records.layout import CONTROL_BIT, TRANSACTIONAL_BIT, Bytes
from siltstone.base.records.scan import scan_batches
from siltstone.log.fetch import MAX_TIMESTAMP, READ_COMMITTED, READ_UNCOMMITTED
from siltstone.log.names import TopicPartition
from siltstone.log.partition import PartitionLog
from siltstone.log.producers import read_snapshot
from siltstone.log.reading import HasView, LogReader
from siltstone.log.recovery import partition as recovery
from siltstone.log.validation import Origin
from tests.support.kafka import clients, real_clients, siltstone_command, tools
from tests.support.kafka.broker import Broker, HostedBroker
from tests.support.kafka.logdir import copy_of, segment_bases
from tests.support.kafka.our_writer import FIRST_PRODUCER_ID, OurWriter, batch_of
from tests.support.kafka.records import Partition, Record, Sent, workload
from tests.support.kafka.scenario import start_ms

pytestmark = pytest.mark.kafka

OURS, THEIRS = "ours", "theirs"
PARTITIONS: tuple[Partition, ...] = ((OURS, 0), (OURS, 1), (THEIRS, 0))
ISOLATIONS = (READ_UNCOMMITTED, READ_COMMITTED)
CONFIG = {
    "internal.segment.bytes": str(siltstone_command.SEGMENT_BYTES),
    "segment.index.bytes": str(siltstone_command.SEGMENT_INDEX_BYTES),
    "index.interval.bytes": str(siltstone_command.INDEX_INTERVAL_BYTES),
}
COMPACT = {**CONFIG, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "1.0"}
TXN = TRANSACTIONAL_BIT

Consumed = dict[str, dict[Partition, list[Record]]]
"""By isolation level and partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A stopped broker; what consumers read of `theirs`; what producers the broker knew of it."""

    broker: Broker
    consumed: Consumed
    producers: list[clients.ProducerState]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ours:
    """What Siltstone saw in `theirs` and did; `crashed`: the directory as a kill would have left it."""

    writers: list[OurWriter]
    crashed: Path
    read_theirs: dict[str, list[Record]]
    producers_of_theirs: list[clients.ProducerState]
    retried: list[tuple[bool, int, int]]
    added_to_theirs: list[Record]
    times: dict[Partition, dict[int, tuple[int, int] | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What the broker served of that, and then of what its own producers added."""

    log: str
    log_dir: Path
    consumed: Consumed
    java: Consumed
    ends: dict[Partition, tuple[int, int, int]]
    producers: list[list[clients.ProducerState]]
    times: dict[Partition, dict[int, tuple[int, int] | None]]
    added: dict[str, list[Sent]]
    consumed_after: Consumed


# A real broker with real clients


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    broker = HostedBroker(tmp_path_factory.mktemp("written") / "logs")
    with broker:
        broker.create_topic(OURS, 2, COMPACT)
        broker.create_topic(THEIRS, 1, CONFIG)
        real_clients.write_topic(broker, THEIRS)
        consumed = _consume(broker, [(THEIRS, 0)])
        producers = clients.describe_producers(broker.bootstrap, THEIRS)
    return Prepared(broker=broker, consumed=consumed, producers=producers)


def _consume(broker: Broker, partitions: list[Partition] | tuple[Partition, ...]) -> Consumed:
    return {isolation: clients.consume(broker.bootstrap, partitions, isolation) for isolation in ISOLATIONS}


# Siltstone


@pytest.fixture(scope="module")
def ours(prepared: Prepared) -> Ours:
    """`ours` is made from nothing, with the id and the settings that the cluster's metadata has for it."""
    log_dir = prepared.broker.log_dirs[0]
    topic_id = (log_dir / "ours-0" / "partition.metadata").read_text().rpartition(" ")[2]
    for number in range(2):
        shutil.rmtree(log_dir / f"ours-{number}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recovery, "SegmentScan", _no_scan)
        logs = st.LogManager.open([log_dir])
    with logs:
        for number in range(2):
            logs.get_or_create(TopicPartition(OURS, number))
        assert logs.topics.describe(OURS).topic_id == topic_id
        assert logs.topics.describe(OURS).config.items() >= COMPACT.items()
        logs.topics.alter(THEIRS, CONFIG)
        theirs = logs[THEIRS, 0]
        read_theirs = {isolation: _read(theirs, isolation) for isolation in ISOLATIONS}
        known = [
            clients.ProducerState(entry.producer_id, entry.producer_epoch, entry.last_sequence)
            for entry in theirs._producers.entries()
        ]
        retried = _send_last_batches_again(theirs)
        added = _go_on_in_theirs(theirs, known)
        writers = [_write_ours(logs[OURS, number], number) for number in range(2)]
        crashed = copy_of(log_dir, log_dir.with_name("crashed"))
        return Ours(
            writers=writers,
            crashed=crashed,
            read_theirs=read_theirs,
            producers_of_theirs=known,
            retried=retried,
            added_to_theirs=added,
            times={partition: _our_times(logs[partition]) for partition in PARTITIONS},
        )


def _no_scan(*arguments: object, **more: object) -> None:
    raise AssertionError("a cleanly stopped log was scanned")


def _read(log: HasView, isolation: str) -> list[Record]:
    return [
        Record(
            record.offset,
            record.timestamp,
            record.key,
            record.value,
            tuple((name.decode(), value) for name, value in record.headers),
        )
        for record in LogReader(log, isolation=isolation).records()
    ]


def _write_ours(log: PartitionLog, number: int) -> OurWriter:
    """Partition 1 is left with a transaction open."""
    records = workload(seed=61 + number, prefix=OURS, count=2000, keys=200, start_ms=start_ms())
    writer = OurWriter(log, records[:1900], seed=number)
    writer.write_all()
    writer.end_all()
    if number:
        writer.records = records[1900:]
        writer.append(writer.producers[3])
        writer.write_all()
    return writer


def _stored_batches(log: PartitionLog) -> Iterator[tuple[Any, Bytes]]:
    for path in sorted(log.directory.glob("*.log")):
        data = np.frombuffer(path.read_bytes(), np.uint8)
        for batch in scan_batches(data).batches:
            yield batch, data[batch["position"] :][: batch["size"]].copy()


def _send_last_batches_again(log: PartitionLog) -> list[tuple[bool, int, int]]:
    """Each idempotent producer's last batch (a snapshot keeps no more): a duplicate? at which offset?"""
    results, last = [], {}
    for batch, data in _stored_batches(log):
        if not batch["attributes"] & CONTROL_BIT:
            last[int(batch["producer_id"])] = batch, data
    for producer_id in range(3):
        batch, data = last[producer_id]
        data[:8] = 0
        appended = log.append(data)
        results.append((appended.is_duplicate, appended.first_offset, int(batch["base_offset"])))
    return results


def _go_on_in_theirs(log: PartitionLog, known: list[clients.ProducerState]) -> list[Record]:
    """Plain records, an idempotent producer's next ones (its client is gone), a transaction of our own."""
    sent = workload(seed=63, prefix=THEIRS, count=30, keys=10, start_ms=start_ms())
    at, own_id = log.log_end_offset, FIRST_PRODUCER_ID
    outside_transactions = [
        int(batch["producer_id"]) for batch, _ in _stored_batches(log) if not batch["attributes"] & TXN
    ]
    idle = next(producer for producer in known if producer.producer_id == max(outside_transactions))
    shapes = [
        NewBatchHeader(),
        NewBatchHeader(
            producer_id=idle.producer_id, producer_epoch=idle.epoch, base_sequence=idle.last_sequence + 1
        ),
        NewBatchHeader(producer_id=own_id, producer_epoch=0, base_sequence=0, transactional=True),
    ]
    for number, shape in enumerate(shapes):
        log.append(batch_of(sent[10 * number :][:10], shape))
    log.append(
        end_transaction_marker(
            is_commit=True, producer_id=own_id, producer_epoch=0, coordinator_epoch=0, timestamp_ms=start_ms()
        ),
        origin=Origin.COORDINATOR,
    )
    return [Record(offset, r.timestamp_ms, r.key, r.value, r.headers) for offset, r in enumerate(sent, at)]


def _our_times(log: PartitionLog) -> dict[int, tuple[int, int] | None]:
    """Offset and time of the first record at or after some times, before and behind all of them too."""
    some = [record.timestamp_ms for record in _read(log, READ_UNCOMMITTED)[::150]]
    times = [0, *(time + late for time in some for late in (0, 1)), 1 << 45, MAX_TIMESTAMP]
    places = {time: log.offset_for_time(time) for time in times}
    return {time: place and (place.offset, place.timestamp) for time, place in places.items()}


# The broker on what Siltstone left


@pytest.fixture(scope="module")
def served(prepared: Prepared, ours: Ours) -> Served:
    broker = prepared.broker
    with broker:
        consumed = _consume(broker, PARTITIONS)
        times = {
            partition: real_clients.times(broker, partition, ours.times[partition])
            for partition in PARTITIONS
        }
        ends = {partition: real_clients.ends(broker, partition) for partition in PARTITIONS}
        java = {isolation: _consume_java(broker, ours, isolation) for isolation in ISOLATIONS}
        producers = [clients.describe_producers(broker.bootstrap, OURS, number) for number in range(2)]
        added = dict(zip(ISOLATIONS, real_clients.add_more(broker, (OURS, THEIRS)), strict=True))
        consumed_after = _consume(broker, PARTITIONS)
    return Served(
        log=broker.log_file.read_text(errors="replace"),
        log_dir=broker.log_dirs[0],
        consumed=consumed,
        java=java,
        ends=ends,
        producers=producers,
        times=times,
        added=added,
        consumed_after=consumed_after,
    )


def _consume_java(broker: Broker, ours: Ours, isolation: str) -> dict[Partition, list[Record]]:
    records: dict[Partition, list[Record]] = {(OURS, number): [] for number in range(2)}
    count = sum(len(_expected(writer, isolation)) for writer in ours.writers)
    for number, record in clients.consume_java(broker.bootstrap, [OURS], count, isolation):
        records[OURS, number].append(record)
    return records


def _expected(writer: OurWriter, isolation: str) -> list[Record]:
    return writer.committed() if isolation == READ_COMMITTED else writer.uncommitted()


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_siltstone_reads_what_consumers_read(prepared: Prepared, ours: Ours, isolation: str) -> None:
    theirs = prepared.consumed[isolation][THEIRS, 0]
    assert ours.read_theirs[isolation] == theirs
    assert len(theirs) == (1160 if isolation == READ_UNCOMMITTED else 880)


def test_producers_of_a_broker_are_known_and_their_retries_found(prepared: Prepared, ours: Ours) -> None:
    assert ours.producers_of_theirs == prepared.producers and len(prepared.producers) == 4
    assert len(ours.retried) == 3
    assert all(again and first == stored for again, first, stored in ours.retried)


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_consumers_read_what_siltstone_wrote(
    prepared: Prepared, ours: Ours, served: Served, isolation: str
) -> None:
    for number, writer in enumerate(ours.writers):
        assert served.consumed[isolation][OURS, number] == _expected(writer, isolation)
        assert served.java[isolation][OURS, number] == _expected(writer, isolation)
        assert len(writer.committed()) < len(writer.uncommitted()) == 1900 + 100 * number
    theirs = prepared.consumed[isolation][THEIRS, 0] + ours.added_to_theirs
    assert served.consumed[isolation][THEIRS, 0] == theirs


def test_offsets_and_producers_are_the_same(ours: Ours, served: Served) -> None:
    assert served.times == ours.times
    for number, writer in enumerate(ours.writers):
        assert served.ends[OURS, number] == (0, writer.stable(), writer.end_offset)
        assert served.producers[number] == sorted(producer.state for producer in writer.producers)
    assert ours.writers[1].stable() < ours.writers[1].end_offset


def test_the_broker_recovered_nothing(served: Served) -> None:
    """The broker took every producer from the snapshot at the end, and logged no complaint."""
    lines = [line for line in served.log.splitlines() if "ours-" in line or "theirs-" in line]
    bad = (
        "Recovering unflushed",
        "Rebuilding producer state",
        "stray",
        "invalid",
        "orrupt",
        " WARN ",
        " ERROR ",
    )
    assert not [line for line in lines if any(word in line for word in bad)]
    for topic, number in PARTITIONS:
        end = served.ends[topic, number][2]
        assert any(f"{topic}-{number}/{end:020d}.snapshot" in line for line in lines)


def test_kafkas_tool_finds_nothing_wrong(ours: Ours, served: Served) -> None:
    folders = [served.log_dir / f"{topic}-{number}" for topic, number in PARTITIONS]
    tools.assert_dump_clean(*folders)
    others = [
        path for folder in folders for end in ("snapshot", "txnindex") for path in folder.glob(f"*.{end}")
    ]
    dump = tools.dump_logs(others)
    assert (dump.returncode, dump.faults) == (0, [])
    dumped = tools.aborted_transactions(dump)
    for number, writer in enumerate(ours.writers):
        assert len(segment_bases(served.log_dir, OURS, number)) >= 5
        assert writer.aborted() and writer.aborted() <= dumped[f"ours-{number}"]


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_consumers_and_siltstone_read_what_producers_add(served: Served, isolation: str) -> None:
    """What the broker's producers added comes behind the rest, and a read-only Siltstone sees it all."""
    for topic_partition in PARTITIONS:
        before, after = (
            served.consumed[isolation][topic_partition],
            served.consumed_after[isolation][topic_partition],
        )
        added = [] if topic_partition == (OURS, 1) else served.added[isolation]
        assert after[: len(before)] == before
        assert [(record.key, record.value) for record in after[len(before) :]] == [
            (record.key, record.value) for record in added
        ]
    with st.open(served.log_dir) as logs:
        assert {
            partition: _read(logs[partition], isolation) for partition in PARTITIONS
        } == served.consumed_after[isolation]


# After a crash of ours


def test_recovery_agrees_after_a_crash(ours: Ours, served: Served, tmp_path: Path) -> None:
    """Killed before the close, the last batch of `ours-0` torn, zeros behind `ours-1`.

    What the broker builds again of `ours-1`, which nobody has appended to since, is what we had written.
    """
    for number, tail in ((0, None), (1, bytes(100))):
        last = sorted((ours.crashed / f"ours-{number}").glob("*.log"))[-1]
        data = last.read_bytes()
        last.write_bytes(data[:-10] if tail is None else data + tail)
    brokers = HostedBroker(copy_of(ours.crashed, tmp_path / "logs"))
    config = [part for name, value in CONFIG.items() for part in ("--config", f"{name}={value}")]
    completed = siltstone_command.run_siltstone("recover", ours.crashed, *config, "--json")
    assert completed.returncode == 0, completed.stdout
    logs = {(row["topic"], row["partition"]): row for row in json.loads(completed.stdout)["logs"]}
    with brokers as broker:
        ends = {partition: broker.end_offset(*partition) for partition in PARTITIONS}
        stable = {partition: real_clients.ends(broker, partition)[1] for partition in PARTITIONS}
        consumed = _consume(broker, PARTITIONS)
    assert ends == {partition: logs[partition]["log_end_offset"] for partition in PARTITIONS}
    assert ends[OURS, 0] < ours.writers[0].end_offset and ends[OURS, 1] == ours.writers[1].end_offset
    assert "segment 0. 0 recovered for ours-1" in broker.log_file.read_text(errors="replace")
    for topic, number in PARTITIONS:
        for kind in ("log", "index", "timeindex", "txnindex", "snapshot"):
            rebuilt = _files(broker.log_dirs[0] / f"{topic}-{number}", kind)
            assert rebuilt == _files(ours.crashed / f"{topic}-{number}", kind), (topic, number, kind)
            if (topic, number) == (OURS, 1):
                assert rebuilt == _files(served.log_dir / f"{topic}-{number}", kind), kind
    with st.LogManager.open([ours.crashed]) as recovered:
        assert {partition: recovered[partition].last_stable_offset for partition in PARTITIONS} == stable
        for isolation in ISOLATIONS:
            assert {
                partition: _read(recovered[partition], isolation) for partition in PARTITIONS
            } == consumed[isolation]


def _files(folder: Path, kind: str) -> dict[str, object]:
    """Contents by name; of snapshots the producers in order of id (Kafka's order is a hash table's)."""
    contents = {path.name: path.read_bytes() for path in folder.glob(f"*.{kind}") if path.stat().st_size}
    if kind == "snapshot":
        return {name: sorted(read_snapshot(data, name), key=str) for name, data in contents.items()}
    return dict(contents)
