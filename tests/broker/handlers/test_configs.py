"""DescribeConfigs, IncrementalAlterConfigs, AlterConfigs, ListConfigResources.

``tests/data/broker`` has what a Kafka 4.3.0 answered to DescribeConfigs 4 (`topic_settings.json`: of a topic
with cleanup.policy=compact and retention.ms=123 on a broker with log.segment.delete.delay.ms=200, in its
order; `broker_settings.json`: of the broker, those that Siltstone has).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from siltstone.base.config import Config, parse_broker_config
from siltstone.broker.errors import RequestRefusedError
from siltstone.broker.handlers.configs import (
    APPEND,
    DELETE,
    DESCRIBED_MAX,
    SET,
    SUBTRACT,
    TEXT_BYTES_MAX,
    AlteredResource,
    SettingOperation,
    _refuse_bad_changes,
    alter_configs,
    describe_configs,
    incremental_alter_configs,
    list_config_resources,
)
from siltstone.broker.wire.messages import alter_configs as legacy
from siltstone.broker.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from siltstone.broker.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from siltstone.broker.wire.messages.list_config_resources import ListConfigResourcesRequest
from tests.support.broker import ServedBroker, served

TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32
OWN, DYNAMIC, OF_ALL, STATIC, DEFAULT = 1, 2, 3, 4, 5
NODE = "0"
DATA = Path(__file__).parents[2] / "data" / "broker"
UNKNOWN, BAD_NAME, BAD_CONFIG, BAD_REQUEST = 3, 17, 40, 42
DIFFERENT_DEFAULTS = {
    "log.cleaner.io.buffer.size": "windows are decoded as a whole",
    "listeners": "loopback only",
    "queued.max.request.bytes": "bounded",
    "socket.listen.backlog.size": "many may come while one thread answers",
    "socket.receive.buffer.bytes": "the system's",
    "socket.send.buffer.bytes": "the system's",
}
DIFFERENT_OTHERWISE = {
    "listeners": "not at run time",
    "listener.security.protocol.map": "not at run time",
    "max.connections": "not at run time",
    "max.connections.per.ip": "not at run time",
    "max.connections.per.ip.overrides": "not at run time",
}


def described(
    broker: ServedBroker,
    kind: int,
    name: str,
    *,
    keys: tuple[str, ...] | None = None,
    version: int = 4,
    **flags: bool,
) -> Any:
    """The answer about one resource."""
    resource = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys)
    request = DescribeConfigsRequest(resources=(resource,), **flags)
    return broker.call(describe_configs, request, version).results[0]


def changed(
    broker: ServedBroker,
    kind: int,
    name: str,
    *changes: tuple[str, int, str | None],
    validate_only: bool = False,
) -> int:
    """The code of IncrementalAlterConfigs 1 for one resource."""
    configs = tuple(
        AlterableConfig(name=key, config_operation=operation, value=value)
        for key, operation, value in changes
    )
    resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
    request = IncrementalAlterConfigsRequest(resources=(resource,), validate_only=validate_only)
    (answer,) = broker.call(incremental_alter_configs, request, 1).responses
    assert (answer.resource_type, answer.resource_name) == (kind, name)
    assert (answer.error_message is None) == (answer.error_code == 0)
    return int(answer.error_code)


def own(broker: ServedBroker, topic: str = "t") -> dict[str, str]:
    """A topic's own settings."""
    return dict(broker.manager.topics.describe(topic).config)


def sources(entry: Any) -> list[tuple[str, str, int]]:
    """The synonyms of a setting."""
    return [(synonym.name, synonym.value, synonym.source) for synonym in entry.synonyms]


def with_static(broker: ServedBroker, **settings: str) -> None:
    """Give the broker a server.properties with these settings; underscores are dots."""
    texts = {name.replace("_", "."): value for name, value in settings.items()}
    broker.manager.update_config(Config(static=parse_broker_config(texts, "server.properties")))


# DescribeConfigs


def test_a_topics_settings_are_kafkas_in_kafkas_order(broker: ServedBroker) -> None:
    with_static(broker, log_segment_delete_delay_ms="200")
    broker.manager.topics.create("t", 1, {"cleanup.policy": "compact", "retention.ms": "123"})
    resource = described(broker, TOPIC, "t", include_synonyms=True)
    assert (resource.error_code, resource.error_message) == (0, "")
    kafkas = json.loads((DATA / "topic_settings.json").read_text("utf-8"))
    assert [
        {
            "name": entry.name,
            "value": entry.value,
            "source": entry.config_source,
            "type": entry.config_type,
            "synonyms": [list(synonym) for synonym in sources(entry)],
        }
        for entry in resource.configs[: len(kafkas)]
    ] == kafkas
    assert len(kafkas) == 33
    assert [entry.name for entry in resource.configs[33:]] == [
        "compactionThreshold",
        "max.decompressed.message.bytes",
        "siltstone.compaction.order",
        "siltstone.retention.policy",
        "topicCompactionRetainNullKey",
    ]
    assert not any(entry.read_only or entry.is_sensitive for entry in resource.configs)


def test_a_brokers_settings_are_kafkas(broker: ServedBroker) -> None:
    entries = {entry.name: entry for entry in described(broker, BROKER, NODE, include_synonyms=True).configs}
    assert list(entries) == sorted(entries)
    for kafkas in json.loads((DATA / "broker_settings.json").read_text("utf-8")):
        name, entry = kafkas["name"], entries[kafkas["name"]]
        defaults = [value for _, value, source in sources(entry) if source == DEFAULT][-1:]
        assert (name, defaults == kafkas["default"]) == (name, name not in DIFFERENT_DEFAULTS)
        alike = (entry.read_only, entry.config_type) == (kafkas["read_only"], kafkas["type"])
        assert (name, alike) == (name, name not in DIFFERENT_OTHERWISE)


def test_a_broker_tells_its_directories_and_its_number(broker: ServedBroker, tmp_path: Path) -> None:
    """Whoever has named them: the command line, or the files in the directories."""
    keys = ("log.dirs", "log.dir", "node.id")
    entries = {entry.name: entry for entry in described(broker, BROKER, NODE, keys=keys).configs}
    assert {name: (entry.value, entry.config_source) for name, entry in entries.items()} == {
        "log.dirs": (str(tmp_path), STATIC),
        "log.dir": ("/tmp/kafka-logs", DEFAULT),
        "node.id": (NODE, STATIC),
    }
    with_static(broker, log_dirs="/elsewhere")
    (entry,) = described(broker, BROKER, NODE, keys=("log.dirs",)).configs
    assert (entry.value, entry.config_source) == ("/elsewhere", STATIC)


def test_what_kafka_does_not_list_is_listed_where_it_is_set(broker: ServedBroker) -> None:
    name = "log.initial.task.delay.ms"
    assert described(broker, BROKER, NODE, keys=(name,)).configs == ()
    with_static(broker, log_initial_task_delay_ms="5")
    (entry,) = described(broker, BROKER, NODE, keys=(name,)).configs
    assert (entry.value, entry.config_source) == ("5", STATIC)


def test_keys_documentation_and_synonyms_are_sent_if_they_are_asked_for(broker: ServedBroker) -> None:
    broker.log("t")
    resource = described(broker, TOPIC, "t", keys=("retention.ms", "nope"))
    (entry,) = resource.configs
    assert (entry.name, entry.value, entry.documentation, entry.synonyms) == (
        "retention.ms",
        "604800000",
        None,
        (),
    )
    (entry,) = described(broker, TOPIC, "t", keys=("flush.messages",), include_documentation=True).configs
    assert entry.documentation == "Records after which the log is synced to disk."
    everything = described(broker, TOPIC, "t").configs
    assert described(broker, TOPIC, "t", keys=()).configs == everything


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (TOPIC, "nope", UNKNOWN),
        (TOPIC, "", BAD_NAME),
        (TOPIC, "bad/x", BAD_NAME),
        (BROKER, "2", BAD_REQUEST),
        (BROKER, "x", BAD_REQUEST),
        (BROKER, "9" * 10_000, BAD_REQUEST),
        (BROKER, "٣", BAD_REQUEST),
        (LOGGER, "2", BAD_REQUEST),
        (LOGGER, "", BAD_REQUEST),
        (METRICS, "", BAD_REQUEST),
        (GROUP, "", BAD_REQUEST),
        (0, "x", BAD_REQUEST),
        (99, "x", BAD_REQUEST),
        (-1, "x", BAD_REQUEST),
    ],
)
def test_a_resource_that_does_not_exist_has_no_settings(
    broker: ServedBroker, kind: int, name: str, code: int
) -> None:
    resource = described(broker, kind, name)
    assert (resource.error_code, resource.resource_type, resource.resource_name) == (code, kind, name)
    assert resource.configs == ()


@pytest.mark.parametrize(("kind", "name"), [(LOGGER, NODE), (METRICS, "cm"), (GROUP, "g")])
def test_what_siltstone_lacks_has_an_empty_list(broker: ServedBroker, kind: int, name: str) -> None:
    resource = described(broker, kind, name)
    assert (resource.error_code, resource.configs) == (0, ())


def test_a_small_request_makes_no_huge_answer(broker: ServedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    broker.log("t")
    assert DESCRIBED_MAX <= 10_000
    monkeypatch.setattr("siltstone.broker.handlers.configs.DESCRIBED_MAX", 2)
    resource = DescribeConfigsResource(resource_type=TOPIC, resource_name="t", configuration_keys=None)
    answer = broker.call(describe_configs, DescribeConfigsRequest(resources=(resource,) * 3), 4)
    first, second, third = answer.results
    assert (first.error_code, third.error_code, third.configs) == (0, 44, ())
    assert second is first


def test_sources_strongest_first(broker: ServedBroker) -> None:
    with_static(broker, log_retention_hours="24")
    broker.log("t")
    for name, value in ((NODE, "5000"), ("", "6000")):
        assert changed(broker, BROKER, name, ("log.retention.ms", SET, value)) == 0
    assert changed(broker, TOPIC, "t", ("retention.ms", SET, "9")) == 0
    (entry,) = described(broker, TOPIC, "t", keys=("retention.ms",), include_synonyms=True).configs
    assert (entry.value, entry.config_source) == ("9", OWN)
    of_broker = [
        ("log.retention.ms", "5000", DYNAMIC),
        ("log.retention.ms", "6000", OF_ALL),
        ("log.retention.hours", "24", STATIC),
        ("log.retention.hours", "168", DEFAULT),
    ]
    assert sources(entry) == [("retention.ms", "9", OWN), *of_broker]
    (entry,) = described(broker, BROKER, NODE, keys=("log.retention.ms",), include_synonyms=True).configs
    assert (entry.value, entry.config_source, sources(entry)) == ("5000", DYNAMIC, of_broker)
    (entry, isr) = described(broker, BROKER, "", include_synonyms=True).configs
    assert (entry.name, entry.value, sources(entry)) == (
        "log.retention.ms", "6000", [("log.retention.ms", "6000", OF_ALL)],
    )  # fmt: skip
    assert (isr.name, isr.value, isr.config_source) == ("min.insync.replicas", "1", OF_ALL)


def test_what_only_a_weaker_name_says_has_no_source(broker: ServedBroker) -> None:
    """As in Kafka, whose answer says that the value is the default then."""
    with_static(broker, log_retention_hours="24")
    broker.log("t")
    (entry,) = described(broker, TOPIC, "t", keys=("retention.ms",), include_synonyms=True).configs
    assert (entry.value, entry.config_source, sources(entry)) == (str(24 * 3_600_000), DEFAULT, [])
    entries = {entry.name: entry for entry in described(broker, BROKER, NODE).configs}
    assert (entries["log.retention.ms"].value, entries["log.retention.ms"].config_source) == (None, DEFAULT)
    assert (entries["log.retention.hours"].value, entries["log.retention.hours"].config_source) == (
        "24",
        STATIC,
    )


def test_another_name_of_a_setting_is_listed_where_it_is_set(broker: ServedBroker) -> None:
    broker.manager.topics.create("t", 1, {"internal.segment.bytes": "1000", "message.format.version": "3.0"})
    entries = described(broker, TOPIC, "t", include_synonyms=True).configs
    assert (entries[0].name, entries[0].value, sources(entries[0])) == (
        "internal.segment.bytes", "1000", [("internal.segment.bytes", "1000", OWN)],
    )  # fmt: skip
    by_name = {entry.name: (entry.value, entry.config_source) for entry in entries}
    assert by_name["segment.bytes"] == (str(1 << 30), DEFAULT)
    assert by_name["message.format.version"] == ("3.0", OWN)


# IncrementalAlterConfigs


def test_a_topics_setting_is_set_and_deleted(broker: ServedBroker) -> None:
    log = broker.log("t")
    assert changed(broker, TOPIC, "t", ("retention.ms", SET, "5")) == 0
    assert (own(broker), log.config.retention_ms) == ({"retention.ms": "5"}, 5)
    assert changed(broker, TOPIC, "t", ("retention.ms", DELETE, None), ("nope", DELETE, None)) == 0
    assert own(broker) == {}
    actions = [(change.action, change.actor.way) for change in broker.broker.served.opened_changes().newest()]
    assert actions == [("alter", "kafka")] * 2


def test_words_are_appended_and_subtracted(broker: ServedBroker) -> None:
    broker.log("t")
    key = "cleanup.policy"
    for operation, words, after in (
        (APPEND, "compact", "delete,compact"),
        (APPEND, "compact, delete", "delete,compact"),
        (SUBTRACT, "delete", "compact"),
        (SUBTRACT, "delete,compact", ""),
        (SUBTRACT, "delete", ""),
        (APPEND, "", ""),
        (APPEND, "compact,delete", "compact,delete"),
    ):
        assert changed(broker, TOPIC, "t", (key, operation, words)) == 0
        assert own(broker).get(key) == after, (operation, words)


CHANGES: dict[str, tuple[list[tuple[str, int, str | None]], int]] = {
    "an unknown setting": ([("nope", SET, "1")], BAD_CONFIG),
    "the empty name": ([("", SET, "1")], BAD_CONFIG),
    "a bad value": ([("retention.ms", SET, "x")], BAD_CONFIG),
    "a good one and a bad one": ([("flush.ms", SET, "9"), ("retention.ms", SET, "x")], BAD_CONFIG),
    "null": ([("retention.ms", SET, None)], BAD_REQUEST),
    "null appended": ([("cleanup.policy", APPEND, None)], BAD_REQUEST),
    "a bad word": ([("cleanup.policy", APPEND, "foo")], BAD_CONFIG),
    "appended to a number": ([("retention.ms", APPEND, "1")], BAD_CONFIG),
    "subtracted from a number": ([("retention.ms", SUBTRACT, "1")], BAD_CONFIG),
    "appended to nothing": ([("nope", APPEND, "1")], BAD_CONFIG),
    "an unknown operation": ([("retention.ms", 7, "1")], BAD_REQUEST),
    "one setting twice": ([("retention.ms", SET, "1"), ("retention.ms", DELETE, None)], BAD_REQUEST),
    "a huge value": ([("retention.ms", SET, "1" * 10_000_000)], BAD_CONFIG),
    "a huge name": ([("x" * 100_000, SET, "1")], BAD_CONFIG),
    "tiered storage": ([("remote.storage.enable", SET, "TRUE")], BAD_CONFIG),
    "a surrogate": ([("cleanup.policy", SET, "\ud800")], BAD_CONFIG),
}


@pytest.mark.parametrize("case", CHANGES, ids=list(CHANGES))
def test_a_bad_change_of_a_topic_changes_nothing(broker: ServedBroker, case: str) -> None:
    changes, code = CHANGES[case]
    broker.manager.topics.create("t", 1, {"retention.ms": "77"})
    assert changed(broker, TOPIC, "t", *changes) == code
    assert own(broker) == {"retention.ms": "77"}


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (TOPIC, "nope", UNKNOWN),
        (TOPIC, "", BAD_REQUEST),
        (TOPIC, "bad/x", BAD_NAME),
        (BROKER, "2", BAD_REQUEST),
        (BROKER, "x", BAD_REQUEST),
        (LOGGER, NODE, BAD_CONFIG),
        (LOGGER, "2", BAD_REQUEST),
        (GROUP, "g", BAD_REQUEST),
        (METRICS, "cm", BAD_REQUEST),
        (0, "x", BAD_REQUEST),
        (99, "x", BAD_REQUEST),
    ],
)
def test_a_change_of_a_resource_that_does_not_exist_is_refused(
    broker: ServedBroker, kind: int, name: str, code: int
) -> None:
    assert changed(broker, kind, name, ("retention.ms", SET, "1")) == code


def test_the_size_of_a_value_is_that_of_its_bytes() -> None:
    def refuse(text: str) -> None:
        changes = [SettingOperation("cleanup.policy", SET, text)]
        _refuse_bad_changes(AlteredResource(TOPIC, "t", changes, replaces=False))

    for text in ("x", "é"):
        longest = text * (TEXT_BYTES_MAX // len(text.encode()))
        refuse(longest)
        with pytest.raises(RequestRefusedError, match=f"longer than {TEXT_BYTES_MAX} bytes"):
            refuse(longest + text)


def test_resources_of_one_request_have_each_their_outcome(broker: ServedBroker) -> None:
    broker.log("t")
    configs = (AlterableConfig(name="retention.ms", config_operation=SET, value="5"),)
    names = ("t", "nope", "twice", "twice")
    request = IncrementalAlterConfigsRequest(
        resources=tuple(
            AlterConfigsResource(resource_type=TOPIC, resource_name=name, configs=configs) for name in names
        )
    )
    answers = broker.call(incremental_alter_configs, request, 0).responses
    assert [answer.error_code for answer in answers] == [0, UNKNOWN, BAD_REQUEST, BAD_REQUEST]
    assert own(broker) == {"retention.ms": "5"}


def test_a_change_that_is_only_checked_sets_nothing(broker: ServedBroker) -> None:
    broker.log("t")
    assert changed(broker, TOPIC, "t", ("retention.ms", SET, "5"), validate_only=True) == 0
    assert changed(broker, TOPIC, "t", ("retention.ms", SET, "x"), validate_only=True) == BAD_CONFIG
    assert changed(broker, BROKER, NODE, ("log.retention.ms", SET, "5"), validate_only=True) == 0
    assert (own(broker), broker.manager.config.integer("retention.ms")) == ({}, 7 * 86_400_000)


def test_what_is_set_for_the_broker_applies_at_once_and_is_kept(tmp_path: Path) -> None:
    with served(tmp_path) as broker:
        log = broker.log("t")
        assert changed(broker, BROKER, NODE, ("log.cleanup.policy", APPEND, "compact")) == 0
        assert (
            changed(
                broker, BROKER, "", ("log.segment.bytes", SET, "5000"), ("log.flush.interval.ms", SET, "7")
            )
            == 0
        )
        assert changed(broker, BROKER, "", ("log.flush.interval.ms", DELETE, None)) == 0
        assert (log.config.policies, log.config.segment_bytes) == (("delete", "compact"), 5000)
        change = broker.broker.served.opened_changes().newest()[0]
        assert (change.action, change.target, change.after) == (
            "alter-broker",
            "brokers",
            {"log.segment.bytes": "5000"},
        )
    with served(tmp_path) as broker:
        config = broker.manager["t", 0].config
        assert (config.policies, config.segment_bytes, config.flush_ms) == (
            ("delete", "compact"),
            5000,
            2**63 - 1,
        )
        assert changed(broker, BROKER, NODE, ("log.cleanup.policy", DELETE, None)) == 0
        assert broker.manager["t", 0].config.policies == ("delete",)


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("num.partitions", "5", BAD_REQUEST),
        ("log.retention.hours", "5", BAD_REQUEST),
        ("log.retention.ms", "abc", BAD_REQUEST),
        ("retention.ms", "5", BAD_REQUEST),
        ("nope", "5", BAD_CONFIG),
    ],
)
def test_a_bad_change_of_the_broker_is_refused_and_not_recorded(
    broker: ServedBroker, name: str, value: str, code: int
) -> None:
    """Kafka takes unknown settings of brokers: a plugin may know them. Here there is none."""
    for broker_id in (NODE, ""):
        assert changed(broker, BROKER, broker_id, (name, SET, value)) == code
    assert broker.broker.served.opened_changes().newest() == []


# AlterConfigs


def replaced(broker: ServedBroker, kind: int, name: str, **settings: str | None) -> int:
    """The code of AlterConfigs 2; underscores of settings are dots."""
    configs = tuple(
        legacy.AlterableConfig(name=key.replace("_", "."), value=value) for key, value in settings.items()
    )
    resource = legacy.AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
    (answer,) = broker.call(alter_configs, legacy.AlterConfigsRequest(resources=(resource,)), 2).responses
    return int(answer.error_code)


def test_all_settings_are_replaced(broker: ServedBroker) -> None:
    broker.manager.topics.create("t", 1, {"retention.ms": "1", "flush.ms": "2"})
    assert replaced(broker, TOPIC, "t", retention_ms="5", cleanup_policy="compact") == 0
    assert own(broker) == {"retention.ms": "5", "cleanup.policy": "compact"}
    assert replaced(broker, TOPIC, "t", nope="1") == BAD_CONFIG
    assert replaced(broker, TOPIC, "t", retention_ms=None) == BAD_REQUEST
    assert replaced(broker, TOPIC, "nope") == UNKNOWN
    assert replaced(broker, LOGGER, NODE) == BAD_REQUEST
    assert own(broker) == {"retention.ms": "5", "cleanup.policy": "compact"}
    assert replaced(broker, TOPIC, "t") == 0
    assert own(broker) == {}


def test_all_settings_of_the_broker_are_replaced(broker: ServedBroker) -> None:
    assert replaced(broker, BROKER, NODE, log_retention_ms="5", log_flush_interval_ms="6") == 0
    assert replaced(broker, BROKER, NODE, log_retention_ms="7") == 0
    entries = described(broker, BROKER, NODE).configs
    assert {entry.name: entry.value for entry in entries if entry.config_source == DYNAMIC} == {
        "log.retention.ms": "7"
    }


# ListConfigResources


@pytest.mark.parametrize(("version", "kinds", "expected"), [
    (0, (), []),
    (1, (), [(NODE, LOGGER), (NODE, BROKER), ("t", TOPIC)]),
    (1, (TOPIC,), [("t", TOPIC)]),
    (1, (METRICS, GROUP), []),
    (1, (BROKER, TOPIC, BROKER), [(NODE, BROKER), ("t", TOPIC)]),
])  # fmt: skip
def test_resources_with_settings_are_listed_by_kind(
    broker: ServedBroker, version: int, kinds: tuple[int, ...], expected: list[tuple[str, int]]
) -> None:
    broker.log("t")
    answer = broker.call(list_config_resources, ListConfigResourcesRequest(resource_types=kinds), version)
    assert (
        answer.error_code,
        [(resource.resource_name, resource.resource_type) for resource in answer.config_resources],
    ) == (0, expected)


def test_an_unknown_kind_of_resources_is_refused(broker: ServedBroker) -> None:
    answer = broker.call(list_config_resources, ListConfigResourcesRequest(resource_types=(TOPIC, 99)), 1)
    assert (answer.error_code, answer.config_resources) == (35, ())
