"""What happens to a broker's machine while real clients go on: it is stopped for a while, its disk is full or
fails, its connections are cut at any byte. The clients recover without loss, and an idempotent producer's
records are there once."""

from __future__ import annotations

import contextlib
import errno
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from siltstone.broker.errors import Code
from siltstone.broker.listeners import BrokerListener
from siltstone.broker.request_context import ListenerAddress
from siltstone.broker.separate import BrokerProcess
from siltstone.broker.server import BrokerServer
from siltstone.broker.wire import apis
from siltstone.broker.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from siltstone.commands.served import Served, ServeOptions
from siltstone.runtime.producing import NewRecord, batch_of
from tests.support.cutting_proxy import Cut, CuttingProxy
from tests.support.going_on import (
    IN_FLIGHT_MAX,
    SECONDS,
    Reader,
    Sender,
    assert_nothing_is_lost,
    create_topic,
    finish,
    kafka,
    senders_to,
    work,
    work_until,
)
from tests.support.log.managed import failing
from tests.support.thoroughness import THOROUGH
from tests.support.wire_client import WireClient

pytestmark = pytest.mark.random  # longer in make test-long
STOPPED_SECONDS = 60.0 if THOROUGH else 1.5
FULL_SECONDS = 20.0 if THOROUGH else 0.3
DISK_BYTES, FREE_BYTES, RECORD_BYTES = 48 << 20, 6 << 20, 32 << 10
"""Of a file system that gets full; within the free bytes segments of 1 MiB are rolled."""
OTHER = "other"
MORE = 2_000 if THOROUGH else 100
"""Records of each producer before and after a fault."""


@contextlib.contextmanager
def serving(*paths: Path, port: int = 0, advertised: int | None = None) -> Iterator[BrokerServer]:
    """A broker of this process over some directories; ``advertised``: the port that clients are told."""
    options = ServeOptions(
        paths=paths, creates=True, engine="process", settings={"log.cleaner.enable": "false"}
    )
    advertised_address = None if advertised is None else ("127.0.0.1", advertised)
    with (
        Served(options) as served,
        BrokerServer(served, [BrokerListener(port=port, advertised=advertised_address)]) as server,
    ):
        server.start()
        yield server


def port_of(server: BrokerServer) -> int:
    """Where it listens itself, whatever it advertises."""
    return int(server._listeners[0].socket.getsockname()[1])


@pytest.mark.timeout(300)
def test_a_broker_that_is_stopped_for_a_minute() -> None:
    with BrokerProcess() as broker:
        create_topic(broker.address)
        # Their requests time out long before it goes on, so they connect again and send again.
        senders = senders_to(broker.address, **{"socket.timeout.ms": int(STOPPED_SECONDS * 200)})
        watching = Reader(broker.address)
        work_until(senders, watching, more=MORE)
        broker.pause()
        acknowledged = [len(sender.acknowledged) for sender in senders]
        work(senders, watching, STOPPED_SECONDS)
        now = [len(sender.acknowledged) for sender in senders]
        assert all(later - before <= IN_FLIGHT_MAX for later, before in zip(now, acknowledged, strict=True))
        broker.resume()
        work_until(senders, watching, more=MORE)
        log = finish(senders, watching, broker.address)
    assert_nothing_is_lost(senders, watching, log)


@pytest.mark.timeout(300)
def test_a_full_disk_that_is_freed(tmp_path: Path) -> None:
    with serving(tmp_path / "logs") as server:
        address = f"127.0.0.1:{server.addresses[0].port}"
        create_topic(address)
        senders, watching = senders_to(address), Reader(address)
        work_until(senders, watching, more=MORE)
        with failing(tmp_path, "write", error=errno.ENOSPC) as refused:
            work(senders, watching, FULL_SECONDS)
            assert refused, "nothing was written meanwhile"
            ends = [log.log_end_offset for _, log in server.broker.manager.logs()]
            work(senders, watching, 0.1)
            assert [log.log_end_offset for _, log in server.broker.manager.logs()] == ends
        assert not server.broker.manager.offline
        work_until(senders, watching, more=MORE)
        log = finish(senders, watching, address)
    assert_nothing_is_lost(senders, watching, log)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, of ``DISK_BYTES``."""
    path = tmp_path / "disk"
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "siltstone-test", str(path)]
    try:
        mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount command")
    if mounted.returncode:
        pytest.skip(f"a file system may not be mounted here: {mounted.stderr.strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def code_of_a_record(address: ListenerAddress) -> int:
    """The error code of the answer to a producer's record of ``RECORD_BYTES``."""
    batch = bytes(batch_of([NewRecord(key=b"0", value=bytes(RECORD_BYTES))], "producer", 0))
    topics = (TopicProduceData(name=OTHER, partition_data=(PartitionProduceData(records=batch),)),)
    with contextlib.closing(WireClient(address)) as client:
        answer = client.ask(ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=topics), 9)
    return int(answer.responses[0].partition_responses[0].error_code)


@pytest.mark.timeout(300)
def test_a_file_system_that_is_full(small_disk: Path) -> None:
    """Also while segments are rolled, indexes saved and producers' snapshots written."""
    (small_disk / "other files").write_bytes(bytes(DISK_BYTES - FREE_BYTES))
    with serving(small_disk / "logs") as server:
        address = f"127.0.0.1:{server.addresses[0].port}"
        create_topic(address)
        server.broker.manager.topics.create(OTHER, 1)
        assert code_of_a_record(server.addresses[0]) == 0
        senders, watching = senders_to(address), Reader(address)
        until = time.monotonic() + SECONDS
        while code_of_a_record(server.addresses[0]) == 0:
            assert time.monotonic() < until, "the disk is never full"
            work(senders, watching, 0.1)
        assert code_of_a_record(server.addresses[0]) == Code.KAFKA_STORAGE_ERROR
        work(senders, watching, FULL_SECONDS)
        # A minute later: flushes, checkpoints and what else is due also meet the full disk.
        server.broker.manager.tick(server.broker.manager.clock.now_ms() + 120_000)
        (small_disk / "other files").unlink()
        assert not server.broker.manager.offline
        assert not [log for _, log in server.broker.manager.logs() if log.offline]
        work_until(senders, watching, more=MORE)
        assert code_of_a_record(server.addresses[0]) == 0
        log = finish(senders, watching, address)
    assert_nothing_is_lost(senders, watching, log)


def at_work(address: str, bad: Path) -> tuple[list[Sender], Reader, set[int]]:
    """Senders and a reader that have begun, and the partitions that are in ``bad``: some of them, not all."""
    create_topic(address)
    hit = {int(path.name.rpartition("-")[2]) for path in bad.glob("killed-*")}
    senders, watching = senders_to(address), Reader(address)
    assert 0 < len(hit) < len(senders)
    work_until(senders, watching, more=MORE)
    return senders, watching, hit


@pytest.mark.timeout(300)
def test_a_directory_that_goes_offline_and_is_back_after_a_restart(tmp_path: Path) -> None:
    good, bad = tmp_path / "good", tmp_path / "bad"
    with serving(good, bad) as server:
        port = server.addresses[0].port
        senders, watching, hit = at_work(f"127.0.0.1:{port}", bad)
        with failing(bad, "write"):
            work(senders, watching, FULL_SECONDS)
            assert list(server.broker.manager.offline) == [bad]
        # The disk would work again, but what it has is unknown until a restart looks at it.
        before = {sender.partition: len(sender.acknowledged) for sender in senders}
        work_until([sender for sender in senders if sender.partition not in hit], watching, more=MORE)
        assert {
            sender.partition for sender in senders if len(sender.acknowledged) == before[sender.partition]
        } == hit
    with serving(good, bad, port=port) as server:
        assert not server.broker.manager.offline
        work_until(senders, watching, more=MORE)
        log = finish(senders, watching, f"127.0.0.1:{port}")
    assert_nothing_is_lost(senders, watching, log)


@pytest.mark.timeout(300)
def test_a_file_system_that_is_read_only_for_a_while(tmp_path: Path, small_disk: Path) -> None:
    """As after an error of the disk. A test may not mount it again while a broker has files open there."""
    good, bad = tmp_path / "good", small_disk / "bad"
    with serving(good, bad) as server:
        port = server.addresses[0].port
        senders, watching, hit = at_work(f"127.0.0.1:{port}", bad)
    remount(small_disk, "ro")
    with serving(good, bad, port=port) as server:
        assert list(server.broker.manager.offline) == [bad]
        before = {sender.partition: len(sender.acknowledged) for sender in senders if sender.partition in hit}
        work_until([sender for sender in senders if sender.partition not in hit], watching, more=MORE)
        assert {
            sender.partition: len(sender.acknowledged) for sender in senders if sender.partition in hit
        } == before
    remount(small_disk, "rw")
    with serving(good, bad, port=port) as server:
        assert not server.broker.manager.offline
        work_until(senders, watching, more=MORE)
        log = finish(senders, watching, f"127.0.0.1:{port}")
    assert_nothing_is_lost(senders, watching, log)


def remount(path: Path, mode: str) -> None:
    """Mount a file system again, ``ro`` or ``rw``."""
    subprocess.run(["mount", "-o", f"remount,{mode}", str(path)], check=True)


def cuts_of(api_key: int, request_bytes: int, answer_bytes: int) -> list[Cut]:
    """Every phase: in the length, the header and the body of the request, after it, and in the answer."""
    requests = list(range(1, request_bytes))
    answers = list(range(answer_bytes))
    if not THOROUGH:
        requests = [1, 4, 6, request_bytes // 2, request_bytes - 1]
        answers = [0, 3, 8, answer_bytes - 1]
    return [Cut(api_key, after) for after in requests] + [
        Cut(api_key, after, of_answer=True) for after in answers
    ]


QUICK: dict[str, Any] = {
    "log_level": 0,
    "reconnect.backoff.ms": 1,
    "reconnect.backoff.max.ms": 5,
    "retry.backoff.ms": 1,
    "retry.backoff.max.ms": 5,
    "topic.metadata.refresh.fast.interval.ms": 10,
}


@pytest.mark.timeout(900)
def test_a_producer_whose_connection_is_cut_at_any_byte(tmp_path: Path) -> None:
    with CuttingProxy() as proxy, serving(tmp_path / "logs", advertised=proxy.port) as server:
        proxy.target = "127.0.0.1", port_of(server)
        server.broker.manager.topics.create("users", 1)
        address = f"127.0.0.1:{proxy.port}"
        producer = kafka.Producer({"bootstrap.servers": address, "enable.idempotence": True, **QUICK})
        producer.produce("users", b"%4d" % 0)
        assert producer.flush(SECONDS) == 0
        cuts = cuts_of(apis.PRODUCE, *proxy.sizes[apis.PRODUCE])
        for number, cut in enumerate(cuts, 1):
            proxy.add(cut)
            producer.produce("users", b"%4d" % number)
            assert producer.flush(SECONDS) == 0, cut
            assert cut.met.is_set(), cut
        stored = [record.value for record in server.broker.manager["users"]]
        assert stored == [b"%4d" % number for number in range(len(cuts) + 1)]


@pytest.mark.timeout(900)
def test_a_consumer_whose_connection_is_cut_at_any_byte(tmp_path: Path) -> None:
    with CuttingProxy() as proxy, serving(tmp_path / "logs", advertised=proxy.port) as server:
        proxy.target = "127.0.0.1", port_of(server)
        manager = server.broker.manager
        manager.topics.create("users", 1)
        settings = {
            "bootstrap.servers": f"127.0.0.1:{proxy.port}",
            "group.id": "none",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 5,
            "fetch.error.backoff.ms": 1,
            "auto.offset.reset": "error",
            **QUICK,
        }
        consumer = kafka.Consumer(settings)
        consumer.assign([kafka.TopicPartition("users", 0, 0)])
        manager.send("users", b"%4d" % 0)
        values = [consumer.poll(SECONDS).value()]
        # One takes a second, in which the client waits before it connects again.
        cuts = cuts_of(apis.FETCH, *proxy.sizes[apis.FETCH])[:: 4 if THOROUGH else 1]
        for number, cut in enumerate(cuts, 1):
            proxy.add(cut)
            manager.send("users", b"%4d" % number)
            message = consumer.poll(SECONDS)
            while message is not None and message.error() is not None:
                message = consumer.poll(SECONDS)
            values.append(message.value())
            assert cut.met.wait(SECONDS), cut
        consumer.close()
        assert values == [b"%4d" % number for number in range(len(cuts) + 1)]
