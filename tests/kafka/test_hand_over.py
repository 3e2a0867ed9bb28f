"""A real Kafka starts on directories that Siltstone made, and Siltstone on what it leaves."""

from __future__ import annotations

from pathlib import Path

from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

import siltstone as st
from siltstone.broker.hand_over import HandOverRequest, hand_over
from siltstone.commands.directories import BrokerDirectories
from siltstone.log.names import TopicPartition
from tests.support.broker_twin.scenes.quotas import alter_quietly, entity_of, quotas_in
from tests.support.broker_twin.side import DESCRIBE_CLIENT_QUOTAS, Side
from tests.support.kafka.broker import Broker, HostedBroker
from tests.support.kafka.clients import CLIENT_TIMEOUT_S
from tests.support.kafka.records import Sent

QUOTAS = {
    (("client-id", None), ("user", "ada")): {"producer_byte_rate": 1000.0},
    (("ip", "192.0.2.1"),): {"connection_creation_rate": 300.0},
}
KAFKAS_QUOTAS = {
    (("ip", "192.0.2.1"),): {"connection_creation_rate": 300.0},
    (("user", "bob"),): {"request_percentage": 33.5},
}


def test_kafka_starts_on_siltstones_directories_and_siltstone_on_kafkas(tmp_path: Path) -> None:
    properties = tmp_path / "server.properties"
    properties.write_text("node.id=1\n")
    paths = (tmp_path / "a", tmp_path / "b")
    directories = BrokerDirectories(paths=paths, server_properties=properties)
    with directories.open() as manager:
        ids = {
            name: manager.topics.create(name, count, settings).topic_id
            for name, count, settings in (
                ("users", 3, {"cleanup.policy": "compact", "segment.bytes": "1048576"}),
                ("events", 1, {"retention.ms": "123456789"}),
                ("gone", 1, {}),
            )
        }
        for number in range(3):
            records = [st.NewRecord(key=b"%d" % key, value=b"value") for key in range(100)]
            log = manager.get(TopicPartition("users", number))
            st.append(log, records)
        manager.delete_records(TopicPartition("events", 0), 0)
        manager.topics.replace_quotas(QUOTAS)
    result = hand_over(HandOverRequest(directories=directories))
    assert (result.topics, result.partitions) == (3, 5)
    broker = HostedBroker(paths)
    with broker:
        assert [broker.end_offset("users", number) for number in range(3)] == [100] * 3
        assert len(broker.consume_all("users", 1)) == 100
        assert broker.produce("users", [Sent(key=b"new", value=b"by Kafka")]) == [100]
        broker.alter_config("events", retention_ms="777000")
        set_at_run_time(broker, 1_000_002)
        admin = broker.admin()
        admin.delete_topics(["gone"])["gone"].result(CLIENT_TIMEOUT_S)
        broker.create_topic("new", 2)
        side = Side(broker.bootstrap)
        assert quotas_in(side.quietly(DESCRIBE_CLIENT_QUOTAS, 1, components=[])) == {
            "client-id= user=ada": {"producer_byte_rate": 1000.0},
            "ip=192.0.2.1": {"connection_creation_rate": 300.0},
        }
        alter_quietly(
            side,
            (entity_of(user="ada", client_id=None), "producer_byte_rate", None),
            (entity_of(user="bob"), "request_percentage", 33.5),
        )
        side.close()
    with directories.open() as manager:
        assert manager.topics.settings("events").integer("retention.ms") == 777_000
        assert "gone" not in manager.topics.names()
        assert manager.topics.quotas == KAFKAS_QUOTAS
        assert manager.topics.describe("users").topic_id == ids["users"]
        assert manager.topics.settings("users").integer("segment.bytes") == 1_048_576
        manager.topics.create("ours", 1, {})
        assert manager.get(TopicPartition("users", 0)).log_end_offset == 101
    moved = hand_over(HandOverRequest(directories=directories, move_metadata_to=tmp_path / "old"))
    assert moved.moved == tmp_path / "old"
    with directories.open() as manager:  # before a Kafka has written another metadata log
        assert manager.topics.settings("events").integer("retention.ms") == 777_000
        assert manager.topics.settings("users")["cleanup.policy"] == ("compact",)
        assert manager.topics.describe("users").topic_id == ids["users"]
        assert manager.topics.settings("users").integer("flush.ms") == 1_000_002
        assert "gone" not in manager.topics.names()
    with broker:
        admin = broker.admin()
        names = set(admin.list_topics(timeout=CLIENT_TIMEOUT_S).topics)
        assert names == {"users", "events", "new", "ours", "__consumer_offsets"}
        assert broker.end_offset("users", 0) == 101
        side = Side(broker.bootstrap)
        assert quotas_in(side.quietly(DESCRIBE_CLIENT_QUOTAS, 1, components=[])) == {
            "ip=192.0.2.1": {"connection_creation_rate": 300.0},
            "user=bob": {"request_percentage": 33.5},
        }
        side.close()
        assert settings_at(broker, "events")["retention.ms"] == "777000"
        assert settings_at(broker, "1", ResourceType.BROKER)["log.flush.interval.ms"] == "1000002"
        broker.alter_config("events", retention_ms="888000")
        set_at_run_time(broker, 1_000_003)
    with directories.open() as manager:
        assert manager.topics.settings("events").integer("retention.ms") == 888_000
        assert manager.topics.settings("users").integer("flush.ms") == 1_000_003


def settings_at(broker: Broker, name: str, kind: ResourceType = ResourceType.TOPIC) -> dict[str, str]:
    """The settings of a topic, or of a broker, as Kafka has them."""
    admin = broker.admin()
    (future,) = admin.describe_configs([ConfigResource(kind, name)]).values()
    return {key: entry.value for key, entry in future.result(CLIENT_TIMEOUT_S).items()}


def set_at_run_time(broker: Broker, flush_ms: int) -> None:
    """Set a setting of the broker."""
    admin, set_ = broker.admin(), AlterConfigOpType.SET
    entry = ConfigEntry("log.flush.interval.ms", str(flush_ms), incremental_operation=set_)
    resource = ConfigResource(ResourceType.BROKER, "1", incremental_configs=[entry])
    (future,) = admin.incremental_alter_configs([resource]).values()
    future.result(CLIENT_TIMEOUT_S)
