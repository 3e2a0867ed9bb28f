"""Which value is in force, and where it came from: worked example 11, every pair of layers, a real broker."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from siltstone.base.config import (
    Config,
    ConfigSource,
    LogConfig,
    format_value,
    parse_assignments,
    parse_broker_config,
    parse_topic_config,
)

DAY_MS = 86_400_000
MS, MINUTES, HOURS = "log.retention.ms", "log.retention.minutes", "log.retention.hours"
LAYERS = [
    ConfigSource.DYNAMIC_TOPIC_CONFIG,
    ConfigSource.DYNAMIC_BROKER_CONFIG,
    ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG,
    ConfigSource.STATIC_BROKER_CONFIG,
]


@pytest.mark.parametrize(
    ("static", "retention_ms"),
    [
        ({}, 168 * 3_600_000),
        ({HOURS: "2"}, 2 * 3_600_000),
        ({MINUTES: "3", HOURS: "2"}, 3 * 60_000),
        ({HOURS: "2", MINUTES: "3"}, 3 * 60_000),
        ({MS: "4", MINUTES: "3", HOURS: "2"}, 4),
        ({MS: "4", HOURS: "2"}, 4),
        ({MS: "-1", MINUTES: "3"}, -1),
    ],
)
def test_retention_times_of_a_broker(static: dict[str, str], retention_ms: int) -> None:
    """Worked example 11, the broker's part."""
    broker = Config(static=parse_broker_config(static, "server.properties"))
    assert broker.integer("retention.ms") == retention_ms
    assert LogConfig.of(broker).retention_ms == retention_ms
    source = ConfigSource.STATIC_BROKER_CONFIG if static else ConfigSource.DEFAULT_CONFIG
    assert broker.setting("retention.ms").config_source is source


def test_a_topics_own_retention_time_beats_the_brokers() -> None:
    """Worked example 11, the topic's part."""
    static = parse_broker_config({MS: "4", MINUTES: "3", HOURS: "2"}, "server.properties")
    topic = Config(static=static).with_topic_layer(parse_topic_config({"retention.ms": "9"}, "topic t"))
    setting = topic.setting("retention.ms")
    assert (setting.value, setting.source, setting.config_source) == (
        9,
        "topic t",
        ConfigSource.DYNAMIC_TOPIC_CONFIG,
    )


@pytest.mark.parametrize("held", list(itertools.product([False, True], repeat=4)))
def test_the_strongest_layer_wins(held: tuple[bool, ...]) -> None:
    config = Config()
    for number, (source, is_set) in enumerate(zip(LAYERS, held, strict=True)):
        if is_set:
            name = "segment.ms" if source is ConfigSource.DYNAMIC_TOPIC_CONFIG else "log.roll.ms"
            config = config.with_layer(source, parse_assignments([f"{name}={number + 1}"], f"layer {number}"))
    setting = config.setting("segment.ms")
    if True in held:
        strongest = held.index(True)
        assert setting.config_source is LAYERS[strongest]
        assert (setting.value, setting.source) == (strongest + 1, f"layer {strongest}")
    else:
        assert (setting.value, setting.source, setting.config_source) == (
            7 * DAY_MS,
            "DEFAULT_CONFIG",
            ConfigSource.DEFAULT_CONFIG,
        )


def test_a_layer_comes_before_a_better_name() -> None:
    config = Config(
        broker_default=parse_broker_config(
            {"log.roll.ms": "5"}, "d", ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
        ),
        static=parse_broker_config({"log.roll.ms": "7", "log.roll.hours": "1"}, "s"),
    )
    assert config.integer("segment.ms") == 5
    assert config.with_layer(ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG, {}).integer("segment.ms") == 7


def test_flush_ms_falls_back_on_the_schedulers_interval() -> None:
    static = parse_broker_config({"log.flush.scheduler.interval.ms": "50"}, "s")
    config = Config(static=static)
    assert config.integer("flush.ms") == config.integer("log.flush.scheduler.interval.ms") == 50
    static |= parse_broker_config({"log.flush.interval.ms": "9"}, "s")
    assert Config(static=static).integer("flush.ms") == 9


def test_the_internal_segment_size_wins() -> None:
    config = Config(parse_topic_config({"internal.segment.bytes": "64", "segment.bytes": "4096"}, "t"))
    assert config.integer("segment.bytes") == 64
    assert (
        config.with_topic_layer(parse_topic_config({"segment.bytes": "128"}, "u")).integer("segment.bytes")
        == 128
    )


def test_a_change_at_run_time_is_another_config() -> None:
    broker = Config(static=parse_broker_config({"log.segment.bytes": "4096"}, "s"))
    before = LogConfig.of(broker)
    changed = parse_broker_config(
        {"log.segment.bytes": "1024", "log.cleanup.policy": "compact"},
        "b",
        ConfigSource.DYNAMIC_BROKER_CONFIG,
    )
    after = LogConfig.of(broker.with_layer(ConfigSource.DYNAMIC_BROKER_CONFIG, changed))
    assert (before.segment_bytes, before.policies) == (4096, ("delete",))
    assert (after.segment_bytes, after.policies) == (1024, ("compact",))
    assert LogConfig.of(broker) == before


def test_a_layer_can_be_read_back() -> None:
    settings = parse_topic_config({"segment.bytes": "5"}, "t")
    assert Config(settings).layer(ConfigSource.DYNAMIC_TOPIC_CONFIG) == settings
    assert not Config(settings).layer(ConfigSource.DEFAULT_CONFIG)


# Not the table's to say: the broker writes min.insync.replicas itself at its first start, and the small
# segment size is one setting with segment.bytes here.
APART = {"min.insync.replicas", "segment.bytes", "internal.segment.bytes"}


def test_a_real_brokers_topics_have_the_same_settings(golden: Path) -> None:
    """Kafka 4.3 described each topic's settings and their sources; ours are the same."""
    case = json.loads((golden / "whole_43" / "case.json").read_text(encoding="utf-8"))
    dynamic = case["broker_dynamic"]
    broker = Config(
        static=parse_broker_config(case["broker_static"], "server.properties"),
        broker=parse_broker_config(dynamic["brokers/1"], "broker 1", ConfigSource.DYNAMIC_BROKER_CONFIG),
        broker_default=parse_broker_config(
            dynamic["brokers/default"], "brokers", ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
        ),
    )
    for topic in case["state_before"]["topics"].values():
        own = {
            name: entry["value"]
            for name, entry in topic["configs"].items()
            if entry["source"] == "DYNAMIC_TOPIC_CONFIG"
        }
        config = broker.with_topic_layer(parse_topic_config(own, "topic"))
        here = {name: config.setting(name) for name in topic["configs"].keys() - APART}
        assert {
            name: {"value": format_value(setting.value), "source": setting.config_source.value}
            for name, setting in here.items()
        } == {name: topic["configs"][name] for name in here}
    cleaner = broker.setting("log.cleaner.io.buffer.load.factor")
    assert (cleaner.value, cleaner.config_source) == (0.8, ConfigSource.DYNAMIC_BROKER_CONFIG)
