"""Settings as people give them: names, types, bounds, files of them, and what must hold between them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siltstone.base.config import (
    Config,
    ConfigSource,
    find_key,
    parse_assignments,
    parse_broker_config,
    parse_config_file,
    parse_topic_config,
    refuse_contradictions,
    split_additions,
)
from siltstone.base.config_table import ALL_KEYS
from siltstone.base.errors import UsageError
from tests.support.errors import raises_error


def test_synonyms_are_the_same_setting() -> None:
    assignments = parse_assignments(
        ["log.cleaner.min.cleanable.ratio=0.25", "internal.segment.bytes=99"], "here"
    )
    config = Config(assignments)
    assert config.number("min.cleanable.dirty.ratio") == 0.25
    assert config.integer("segment.bytes") == 99
    assert config.setting("log.segment.bytes").source == "here"


def test_the_later_value_wins() -> None:
    config = Config(parse_assignments(["segment.bytes=1", "segment.bytes=2"], "a"))
    assert config.integer("segment.bytes") == 2
    over = config.with_topic_layer(parse_assignments(["segment.bytes=3"], "b"))
    assert (over.integer("segment.bytes"), over.setting("segment.bytes").source) == (3, "b")
    assert config.integer("segment.bytes") == 2


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("segment.bytes", "key=value"),
        ("segment.byte=1", "did you mean 'segment.bytes'"),
        ("qqq=1", "docs/configuration.md"),
        ("segment.bytes=many", "a whole number"),
        ("segment.bytes=1.5", "a whole number"),
        ("segment.bytes=0", "at least 1"),
        ("segment.bytes=2147483648", "at most 2147483647"),
        ("min.cleanable.dirty.ratio=much", "a number"),
        ("min.cleanable.dirty.ratio=1.1", "at most 1"),
        ("min.cleanable.dirty.ratio=NaN", "at most 1"),
        ("min.cleanable.dirty.ratio=0_1", "a number"),
        ("segment.bytes=1_000", "a whole number"),
        ("segment.bytes=" + "9" * 5000, "a whole number"),
        ("retention.ms=9223372036854775808", "at least -1 and at most 9223372036854775807"),
        ("cleanup.policy=compact,,delete", "commas"),
        ("compression.gzip.level=0", "at least -1 and at most 9, not 0"),
        ("log.retention.hours=0", "at least 1 and at most 2147483647, or negative: no limit"),
        ("log.cleaner.threds=1", "did you mean 'log.cleaner.threads'"),
        ("min.cleanable.dirty.ratio=Infinity", "at most 1"),
        ("cleanup.policy=compress", "choose from delete, compact"),
        ("cleanup.policy=compact,erase", "choose from"),
        ("compression.type=brotli", "choose from"),
        ("remote.storage.enable=yes", "true or false"),
        ("delete.retention.ms=-1", "at least 0"),
    ],
)
def test_a_bad_setting_is_refused_with_what_to_pass(text: str, advice: str) -> None:
    name = text.partition("=")[0]
    with raises_error(UsageError, path="--config", about=name, advice=advice):
        parse_assignments([text], "--config")


@settings(derandomize=True, deadline=None)
@given(st.sampled_from(ALL_KEYS), st.text(max_size=12))
def test_any_text_is_parsed_or_refused(key, text: str) -> None:
    try:
        setting = parse_assignments([f"{key.name}={text}"], "test")[key.name]
    except UsageError:
        return
    value = setting.value
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        assert (key.minimum is None or value >= key.minimum) and (key.maximum is None or value <= key.maximum)


def test_lists_and_booleans_are_parsed() -> None:
    config = Config(parse_assignments([" cleanup.policy = compact , delete ", "preallocate=TRUE"], "x"))
    assert config.policies == ("compact", "delete")
    assert config.flag("preallocate")


def test_a_file_of_settings_by_topic() -> None:
    text = "# all of them\n\n a-topic:cleanup.policy=compact \na-topic:segment.bytes=7\nb:segment.bytes=8\n"
    by_topic = parse_config_file(text, "topics.txt")
    assert set(by_topic) == {"a-topic", "b"}
    assert by_topic["a-topic"]["segment.bytes"].value == 7
    assert by_topic["b"]["segment.bytes"].source == "topics.txt:5"
    assert by_topic["a-topic"]["cleanup.policy"].value == ("compact",)


@pytest.mark.parametrize("line", ["topic segment.bytes=1", "topic:segment.bytes", "segment.bytes=1"])
def test_a_bad_line_is_named_with_its_number(line: str) -> None:
    with raises_error(UsageError, path="topics.txt:2", about=line, advice="topic:key=value"):
        parse_config_file(f"# first\n{line}\n", "topics.txt")


def test_settings_without_effect_are_not_listed() -> None:
    shown = Config().settings()
    assert "segment.bytes" in shown and "min.insync.replicas" not in shown
    assert "log.cleaner.io.buffer.size" in shown and "log.cleaner.enable" not in shown
    assert find_key("log.cleaner.delete.retention.ms").name == "delete.retention.ms"


def test_creating_a_topic_as_the_document_does() -> None:
    """Worked example 21: what --config of the example's command sets, and nothing else."""
    arguments = ["cleanup.policy=delete", "retention.ms=10000", "retention.bytes=128000"]
    config = Config(parse_topic_config(arguments, "--config"))
    assert config.policies == ("delete",)
    assert config.integer("retention.ms") == 10_000
    assert config.integer("retention.bytes") == 128_000
    topic_settings = [
        name
        for name, setting in config.settings().items()
        if setting.config_source is ConfigSource.DYNAMIC_TOPIC_CONFIG
    ]
    assert topic_settings == ["cleanup.policy", "retention.bytes", "retention.ms"]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", []),
        ("a=1", ["a=1"]),
        ("retention.ms=5, segment.bytes=7", ["retention.ms=5", "segment.bytes=7"]),
        ("cleanup.policy=[compact,delete],a=1", ["cleanup.policy=[compact,delete]", "a=1"]),
        ("a=1,cleanup.policy=[compact,delete]", ["a=1", "cleanup.policy=[compact,delete]"]),
    ],
)
def test_additions_are_split_outside_brackets(text: str, parts: list[str]) -> None:
    assert split_additions(text) == parts


@pytest.mark.parametrize(
    "text", ["[compact,delete]", "[compact, delete]", "compact,delete", "compact,delete,compact"]
)
def test_lists_with_and_without_brackets(text: str) -> None:
    assert Config(parse_topic_config([f"cleanup.policy={text}"], "x")).policies == ("compact", "delete")


def test_an_empty_list_is_a_list() -> None:
    assert Config(parse_topic_config({"cleanup.policy": ""}, "x")).policies == ()


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("log.retention.hours", "'retention.ms'"),
        ("log.dirs", "for the broker"),
        ("retention.hours", "did you mean 'retention.ms'"),
    ],
)
def test_a_topic_takes_topics_names_only(name: str, advice: str) -> None:
    with raises_error(UsageError, path="topic users", about=repr(name), advice=advice):
        parse_topic_config({name: "1"}, "topic users")


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("retention.ms", "'log.retention.ms'"),
        ("internal.segment.bytes", "'log.segment.bytes'"),
        ("remote.storage.enable", "for the topic"),
    ],
)
def test_a_broker_takes_brokers_names_only(name: str, advice: str) -> None:
    with raises_error(UsageError, path="server.properties:3", about=repr(name), advice=advice):
        parse_broker_config({name: "1"}, "server.properties:3")


@pytest.mark.parametrize("name", ["log.retention.hours", "log.dirs", "log.cleaner.enable", "log.roll.hours"])
def test_a_setting_that_is_read_at_startup_cannot_change_later(name: str) -> None:
    text = {"log.dirs": "/a", "log.cleaner.enable": "true"}.get(name, "5")
    assert parse_broker_config({name: text}, "x")
    for origin in (ConfigSource.DYNAMIC_BROKER_CONFIG, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG):
        with raises_error(UsageError, path="broker 1", about=name, advice="server.properties"):
            parse_broker_config({name: text}, "broker 1", origin)


def test_contradicting_settings_of_a_topic_are_refused() -> None:
    fine = Config(parse_assignments(["min.compaction.lag.ms=5", "max.compaction.lag.ms=5"], "a"))
    assert refuse_contradictions(fine) is fine
    with raises_error(UsageError, about="min.compaction.lag.ms=6 (b)", advice="raise") as raised:
        refuse_contradictions(fine.with_topic_layer(parse_assignments(["min.compaction.lag.ms=6"], "b")))
    assert "max.compaction.lag.ms=5 (a)" in raised.value.reason
