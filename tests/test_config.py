"""Settings: Kafka's names and synonyms, bounds, sources."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siltstone.config import (
    BROKER_KEYS,
    LONG_MAX,
    TOPIC_KEYS,
    Config,
    find_key,
    parse_assignments,
    parse_config_file,
    parse_value,
)
from siltstone.errors import UsageError

KEYS = [*TOPIC_KEYS, *BROKER_KEYS]


def test_no_name_stands_for_two_settings() -> None:
    names = [name for key in KEYS for name in (key.name, *key.synonyms)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.name)
def test_every_default_is_allowed(key) -> None:
    default = ",".join(key.default) if isinstance(key.default, tuple) else str(key.default)
    assert parse_value(key, default, "test").value == key.default
    assert key.doc.endswith(".")


def test_kafkas_defaults() -> None:
    config = Config()
    assert config.policies == ("delete",)
    assert config.integer("delete.retention.ms") == 86_400_000
    assert config.number("min.cleanable.dirty.ratio") == 0.5
    assert config.integer("segment.bytes") == 1 << 30
    assert config.integer("max.compaction.lag.ms") == LONG_MAX
    assert config.integer("log.cleaner.dedupe.buffer.size") == 128 << 20
    assert not config.flag("remote.storage.enable")
    assert config.setting("segment.bytes").source == "default"


def test_synonyms_are_the_same_setting() -> None:
    given_ = parse_assignments(["log.cleaner.min.cleanable.ratio=0.25", "internal.segment.bytes=99"], "here")
    config = Config(given_)
    assert config.number("min.cleanable.dirty.ratio") == 0.25
    assert config.integer("segment.bytes") == 99
    assert config.setting("log.segment.bytes").source == "here"


def test_the_later_value_wins() -> None:
    config = Config(parse_assignments(["segment.bytes=1", "log.segment.bytes=2"], "a"))
    assert config.integer("segment.bytes") == 2
    over = config.over(parse_assignments(["segment.bytes=3"], "b"))
    assert (over.integer("segment.bytes"), over.setting("segment.bytes").source) == (3, "b")
    assert config.integer("segment.bytes") == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("segment.bytes", "give key=value"),
        ("segment.byte=1", "did you mean 'segment.bytes'"),
        ("qqq=1", "unknown setting 'qqq'"),
        ("segment.bytes=many", "no whole number"),
        ("segment.bytes=1.5", "no whole number"),
        ("segment.bytes=0", "at least 1"),
        ("segment.bytes=2147483648", "at most 2147483647"),
        ("min.cleanable.dirty.ratio=much", "no number"),
        ("min.cleanable.dirty.ratio=1.1", "at most 1"),
        ("min.cleanable.dirty.ratio=nan", "dirty.ratio"),
        ("min.cleanable.dirty.ratio=inf", "at most 1"),
        ("cleanup.policy=compress", "choose from delete, compact"),
        ("cleanup.policy=compact,erase", "choose from"),
        ("compression.type=brotli", "choose from"),
        ("remote.storage.enable=yes", "no true or false"),
        ("delete.retention.ms=-1", "at least 0"),
    ],
)
def test_what_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as error:
        parse_assignments([text], "--config")
    assert "\n" not in str(error.value)


@settings(derandomize=True, deadline=None)
@given(st.sampled_from(KEYS), st.text(max_size=12))
def test_any_text_is_parsed_or_refused(key, text: str) -> None:
    try:
        setting = parse_value(key, text, "test")
    except UsageError:
        return
    value = setting.value
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        assert (key.least is None or value >= key.least) and (key.most is None or value <= key.most)


def test_words_and_flags() -> None:
    config = Config(parse_assignments([" cleanup.policy = compact , delete ", "preallocate=TRUE"], "x"))
    assert config.policies == ("compact", "delete")
    assert config.flag("preallocate")


def test_a_file_of_settings_by_topic() -> None:
    text = "# all of them\n\n a-topic:cleanup.policy=compact \na-topic:segment.bytes=7\nb:segment.bytes=8\n"
    found = parse_config_file(text, "topics.txt")
    assert set(found) == {"a-topic", "b"}
    assert found["a-topic"]["segment.bytes"].value == 7
    assert found["b"]["segment.bytes"].source == "topics.txt:5"
    assert found["a-topic"]["cleanup.policy"].value == ("compact",)


@pytest.mark.parametrize("line", ["topic segment.bytes=1", "topic:segment.bytes", "segment.bytes=1"])
def test_a_bad_line_is_named_with_its_number(line: str) -> None:
    with pytest.raises(UsageError, match=r"topics.txt:2: give topic:key=value"):
        parse_config_file(f"# first\n{line}\n", "topics.txt")


def test_what_has_no_effect_is_not_shown() -> None:
    shown = Config().settings()
    assert "segment.bytes" in shown and "min.insync.replicas" not in shown
    assert find_key("log.cleaner.delete.retention.ms").name == "delete.retention.ms"
