"""What handlers get of the open directories."""

from __future__ import annotations

import threading

import pytest

from siltstone.base.errors import StorageError, UnknownTopicError
from siltstone.broker.handlers.fetch import fetch
from siltstone.broker.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tests.support.broker import ServedBroker, context_of
from tests.support.descriptors import deleted_but_open


def test_a_log_is_looked_up_once(broker: ServedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    log = broker.log("t")
    assert broker.broker.log_of("t", 0) is log
    monkeypatch.setattr(type(broker.manager), "get", None)
    assert broker.broker.log_of("t", 0) is log


def test_a_deleted_log_leaves_the_cache(broker: ServedBroker) -> None:
    log = broker.log("t")
    broker.broker.log_of("t", 0)
    broker.manager.topics.delete("t")
    with pytest.raises(UnknownTopicError):
        broker.broker.log_of("t", 0)
    assert broker.log("t") is broker.broker.log_of("t", 0) is not log


@pytest.mark.parametrize("version", [12, 13])
def test_a_deleted_log_takes_no_space(broker: ServedBroker, version: int) -> None:
    for number in range(2):
        log = broker.log("t", records=3)
        place = {"topic": "t"} if version < 13 else {"topic_id": broker.broker.id_of_topic("t")}
        topics = (FetchTopic(partitions=(FetchPartition(),), **place),)  # type: ignore[arg-type]
        request = FetchRequest(topics=topics, session_epoch=-1)
        assert broker.call(fetch, request, version).responses[0].partitions[0].records
        broker.manager.topics.delete("t")
        del log
        broker.manager.scheduler.tick(broker.clock.now_ms() + (number + 1) * 120_000)
        assert deleted_but_open(broker.manager.directories[0].path) == []


def test_a_log_that_is_offline_is_a_storage_error(broker: ServedBroker) -> None:
    broker.log("t")
    broker.broker.log_of("t", 0)
    broker.manager.directories[0].go_offline("broken")
    with pytest.raises(StorageError):
        broker.broker.log_of("t", 0)


@pytest.mark.parametrize("where", [("t", 1), ("t", -1), ("other", 0), ("", 0), ("../t", 0), ("t\0", 0)])
def test_a_partition_that_does_not_exist_is_an_unknown_topic(
    broker: ServedBroker, where: tuple[str, int]
) -> None:
    broker.log("t")
    with pytest.raises(UnknownTopicError):
        broker.broker.log_of(*where)


def test_topics_by_id(broker: ServedBroker) -> None:
    broker.log("t")
    topic_id = broker.broker.id_of_topic("t")
    assert broker.broker.topic_of_id(topic_id) == "t"
    assert broker.broker.topic_of_id(bytes(16)) is None
    assert broker.broker.id_of_topic("other") == bytes(16)


def test_the_broker_has_the_node_and_cluster_id_of_its_directories(broker: ServedBroker) -> None:
    properties = broker.manager.directories[0].directory.properties()
    assert (str(broker.broker.node_id), broker.broker.cluster_id) == (
        properties["node.id"],
        properties["cluster.id"],
    )
    assert broker.broker.host_and_port(context_of(0)) == ("localhost", 9092)


def test_the_pool_is_another_thread(broker: ServedBroker) -> None:
    async def where() -> tuple[int, int]:
        return threading.get_ident(), await broker.broker.in_pool(threading.get_ident)

    loop_thread, pool_thread = broker.loop.run_until_complete(where())
    assert loop_thread != pool_thread


def test_what_waits_for_the_kernels_is_called_once_they_are_loaded(broker: ServedBroker) -> None:
    is_loaded = threading.Event()
    broker.broker.when_loaded(is_loaded.set)
    assert is_loaded.wait(60)
    is_loaded.clear()
    broker.broker.when_loaded(is_loaded.set)
    assert is_loaded.is_set()
