"""The broker that tests of other programs start, asked by a real client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import confluent_kafka as ck
import pytest

from siltstone.base.errors import UsageError
from siltstone.broker.embedded import EmbeddedBroker
from siltstone.broker.wire.apis import APIS
from tests.support.embedded import LIMIT_S, sent


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as broker:
        yield broker


def values(broker: EmbeddedBroker) -> list[bytes | None]:
    return [record.value for record in broker["users"]]


def test_clients_send_and_the_test_looks(broker: EmbeddedBroker) -> None:
    broker.topics.create("users", 1, {"cleanup.policy": "compact"})
    broker.send("users", b"old", key=b"key")
    assert sent(broker, b"new") == [None]
    assert values(broker) == [b"old", b"new"]
    broker.compact("users")
    assert values(broker) == [b"new"]
    settings = {"group.id": "none", "enable.auto.commit": False, "log_level": 0}
    consumer = ck.Consumer({"bootstrap.servers": broker.address, **settings})
    consumer.assign([ck.TopicPartition("users", 0, 0)])
    message = consumer.poll(LIMIT_S)
    assert message is not None
    assert (message.offset(), message.value()) == (1, b"new")
    consumer.close()


def test_time_passes_only_when_the_test_says_so(broker: EmbeddedBroker) -> None:
    broker.topics.create("users", 1, {"retention.ms": "1000", "segment.ms": "500"})
    broker.send("users", b"old")
    broker.clock.advance(600)  # type: ignore[attr-defined]
    broker.send("users", b"new")
    broker.tick()
    assert values(broker) == [b"old", b"new"]
    broker.clock.advance(300_000)  # type: ignore[attr-defined]
    assert broker.tick()
    assert b"old" not in values(broker)


def test_a_refused_request_is_tried_again_and_stored_once(broker: EmbeddedBroker) -> None:
    broker.topics.create("users", 1, {})
    broker.fail("Produce", "NOT_LEADER_OR_FOLLOWER", times=2)
    assert sent(broker, b"value", acks="all") == [None]
    assert values(broker) == [b"value"]


@pytest.mark.parametrize("idempotent", [False, True])
def test_an_answer_that_is_lost_makes_a_duplicate_unless_the_producer_is_idempotent(
    broker: EmbeddedBroker, idempotent: bool
) -> None:
    broker.topics.create("users", 1, {})
    broker.cut("Produce", after=True)
    assert sent(broker, b"value", **{"enable.idempotence": idempotent}) == [None]
    assert values(broker) == [b"value"] * (1 if idempotent else 2)


def test_an_error_for_good_reaches_the_program(broker: EmbeddedBroker) -> None:
    broker.topics.create("users", 1, {})
    broker.fail("Produce", "POLICY_VIOLATION")
    (error,) = sent(broker, b"value")
    assert isinstance(error, ck.KafkaError)
    assert error.code() == 44
    broker.fail("Produce", 44, times=5)
    broker.heal()
    assert sent(broker, b"value") == [None]
    assert values(broker) == [b"value"]


def test_every_api_can_be_delayed_and_cut_and_refused_if_its_answer_has_a_place_for_it(
    broker: EmbeddedBroker,
) -> None:
    refused = []
    for api in APIS.values():
        try:
            broker.fail(api.name, 44)
        except UsageError as error:
            assert "no place" in str(error)
            broker.cut(api.name)
            refused.append(api.name)
        broker.delay(api.name, 0.0)
        broker.heal()
    assert "Produce" not in refused
    with pytest.raises(UsageError, match="Produce"):
        broker.fail("produce", 1)
    with pytest.raises(UsageError, match="NO_SUCH"):
        broker.fail("Produce", "NO_SUCH")


def test_a_directory_of_ones_own_stays_and_a_temporary_one_goes(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path / "logs", config={"num.partitions": 3}) as broker:
        broker.topics.create("users", 1, {})
        broker.send("users", b"value")
    with EmbeddedBroker(tmp_path / "logs") as broker:
        assert values(broker) == [b"value"]
    with EmbeddedBroker() as broker:
        directory = broker.directory
        assert directory.is_dir()
    assert not directory.exists()


def test_a_wrong_setting_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"num\.partition"):
        EmbeddedBroker(tmp_path / "logs", config={"num.partition": 3})
    assert not (tmp_path / "logs").exists()


def test_a_delay_holds_up_one_connection_and_not_the_end(broker: EmbeddedBroker) -> None:
    broker.topics.create("users", 1, {})
    broker.delay("Produce", 600.0)
    late = ck.Producer({"bootstrap.servers": broker.address, "log_level": 0, "linger.ms": 0})
    late.produce("users", b"late")
    while broker.due:
        late.poll(0.01)
    assert sent(broker, b"now") == [None]
    assert values(broker) == [b"now"]
    late.purge()
