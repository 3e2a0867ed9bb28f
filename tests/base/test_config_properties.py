"""server.properties: Java's format, Kafka's names, errors with file and line."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siltstone.base.config import (
    BROKER_SETTING_NAMES,
    TOPIC_NAMES,
    Config,
    ConfigSource,
    first_property,
    ignored_properties,
    parse_server_properties,
)
from siltstone.base.config_table import OTHER_BROKER_NAMES
from siltstone.base.errors import UsageError
from tests.support.errors import raises_error
from tests.support.thoroughness import examples

SAMPLE = r"""# A comment
! another one
process.roles=broker,controller
node.id: 1
log.dirs = /data/a,\
           /data/b

log.retention.hours	72
log.segment.bytes=1\
048\
576
log\u002Eroll.ms = 5
log.cleaner.enable=false
log.cleaner.enable=true
"""


def test_a_file_may_use_all_of_the_properties_format() -> None:
    properties = parse_server_properties(SAMPLE, "server.properties")
    config = Config(static=properties)
    assert config["process.roles"] == ("broker", "controller")
    assert config.integer("node.id") == 1
    assert config["log.dirs"] == ("/data/a", "/data/b")
    assert config.integer("retention.ms") == 72 * 3_600_000
    assert config.integer("segment.bytes") == 1_048_576
    assert config.integer("segment.ms") == 5
    assert config.flag("log.cleaner.enable")
    places = {name: setting.source.rpartition(":")[2] for name, setting in properties.items()}
    assert places == {
        "process.roles": "3",
        "node.id": "4",
        "log.dirs": "5",
        "log.retention.hours": "8",
        "log.segment.bytes": "9",
        "log.roll.ms": "12",
        "log.cleaner.enable": "14",
    }
    assert config.setting("retention.ms").config_source is ConfigSource.STATIC_BROKER_CONFIG


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_every_kind_of_line_end_counts(end: str) -> None:
    properties = parse_server_properties(SAMPLE.replace("\n", end), "s")
    assert properties["log.roll.ms"].source == "s:12"


@pytest.mark.parametrize(
    ("text", "line", "about", "advice"),
    [
        ("\nlog.retention.hour=1", 2, "'log.retention.hour'", "did you mean 'log.retention.hours'"),
        ("a.b.c=1", 1, "'a.b.c'", "docs/configuration.md"),
        ("log.roll.ms=\\\n 0", 1, "'0' for log.roll.ms", "at least 1 and at most 9223372036854775807"),
        ("\n\nretention.ms=1", 3, "'retention.ms'", "'log.retention.ms'"),
        ("log.dirs=\\u12", 1, "\\u12", "hexadecimal"),
        ("log.segment.bytes", 1, "'' for log.segment.bytes", "a whole number"),
    ],
)
def test_errors_name_the_line(text: str, line: int, about: str, advice: str) -> None:
    with raises_error(UsageError, path=f"s:{line}", about=about, advice=advice):
        parse_server_properties(text, "s")


def escaped(text: str) -> str:
    """``text`` as a value in a properties file, every character escaped."""
    return "".join(f"\\u{unit:04x}" for unit in utf16_units(text))


def utf16_units(text: str) -> list[int]:
    """The 16-bit units of Java's strings."""
    data = text.encode("utf-16-be")
    return [data[i] << 8 | data[i + 1] for i in range(0, len(data), 2)]


@settings(derandomize=True, deadline=None)
@given(st.text(st.characters(codec="utf-8", exclude_characters=","), min_size=1))
def test_escaped_text_is_read_as_it_was(text: str) -> None:
    properties = parse_server_properties(f"log.dirs={escaped('/' + text + '/')}", "s")
    assert properties["log.dirs"].value == ("/" + text + "/",)


@settings(derandomize=True, deadline=None, max_examples=examples(300))
@given(st.text(max_size=60))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        parse_server_properties(text, "s")
    except UsageError as error:
        assert str(error).startswith("s:")


def test_a_brokers_own_file_may_hold_more_than_is_known() -> None:
    text = "ssl.key.password=x\nretention.ms=1\nlog.retention.ms=2\nnum.io.threads=none\nlog.retention.ms=3\n"
    properties = parse_server_properties(text, "f", skip_unknown=True)
    assert {
        name: (setting.value, setting.source, setting.config_source) for name, setting in properties.items()
    } == {"log.retention.ms": (3, "f:5", ConfigSource.STATIC_BROKER_CONFIG)}
    with raises_error(UsageError, path="f:2", about="log.retention.ms", advice="a whole number"):
        parse_server_properties("\nlog.retention.ms=soon", "f", skip_unknown=True)


def test_what_has_no_effect_in_a_file_differs_from_typing_errors() -> None:
    text = (
        "log.retention.ms=1\nreplica.fetch.max.bytes=1\nlistener.name.a.ssl.key.password=x\nprocess.roles=broker\n"
        "log.retention.mss=1\nretention.ms=1\nprocess.roles=broker\nzzz=1\n"
    )
    unknown, unused = ignored_properties(text, "f")
    assert unused == ["replica.fetch.max.bytes", "listener.name.a.ssl.key.password", "process.roles"]
    assert [str(error) for error in unknown] == [
        "f:5: unknown setting 'log.retention.mss'; did you mean 'log.retention.ms'?",
        "f:6: 'retention.ms' is a topic's setting, not a broker's; set 'log.retention.ms' instead",
        "f:8: unknown setting 'zzz'; docs/configuration.md lists all settings",
    ]


def test_no_other_name_of_kafka_has_a_row() -> None:
    assert not OTHER_BROKER_NAMES & (BROKER_SETTING_NAMES | TOPIC_NAMES)
    assert len(OTHER_BROKER_NAMES) > 250


def test_the_first_name_that_a_file_has_is_used() -> None:
    text = "log.dirs=/a,/b\nmetadata.log.dir=\nlog.dir = /c\nlog.dir=/d\n"
    assert first_property(text, "f", "metadata.log.dir", "log.dirs") == "/a,/b"
    assert first_property(text, "f", "log.dir") == "/d"
    assert first_property(text, "f", "metadata.log.dir") is None
