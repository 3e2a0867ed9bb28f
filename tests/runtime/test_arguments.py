"""Wrong arguments of the library are refused at the call, with advice, and nothing is appended."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import siltstone as st
from siltstone.base.errors import InvalidConfigError, UnknownTopicError, UsageError
from siltstone.log.names import TopicPartition
from siltstone.log.reading import AtTime
from siltstone.runtime.manager import LogManager
from tests.support.errors import raises_error
from tests.support.log.managed import NOW, opened


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[LogManager]:
    with opened(tmp_path) as logs:
        logs.topics.create("users", partitions=2)
        yield logs


Call = Callable[[Any], object]
WRONG: dict[str, tuple[Call, str, str]] = {
    "a str as value": (lambda logs: logs.send("users", "text"), "value", "encode"),
    "a str as key": (lambda logs: logs.send("users", b"v", key="k"), "key", "key_serializer"),
    "an int as value": (lambda logs: logs.send("users", 7), "value", "bytes"),
    "a str in a record": (lambda _: st.NewRecord(value="text"), "value", "encode"),  # type: ignore[arg-type]
    "a str in a header": (lambda logs: logs.send("users", b"v", headers={"h": "x"}), "header", "encode"),
    "a str as headers": (lambda logs: logs.send("users", b"v", headers="h"), "headers", "pairs"),
    "numbers as headers": (lambda logs: logs.send("users", b"v", headers=[1, 2]), "headers", "pairs"),
    "a number as headers": (lambda logs: logs.send("users", b"v", headers=7), "headers", "pairs"),
    "an iterator as headers": (
        lambda logs: logs.send("users", b"v", headers=zip(["h"], [b"1"], strict=True)),
        "headers",
        "list of pairs",
    ),
    "an iterator as a record's headers": (
        lambda _: st.NewRecord(value=b"v", headers=(pair for pair in [("h", b"1")])),  # type: ignore[arg-type]
        "headers",
        "list of pairs",
    ),
    "a surrogate in a header's name": (
        lambda logs: logs.send("users", b"v", headers={"h\ud800": b"x"}),
        "header",
        "bytes",
    ),
    "one record": (lambda logs: logs.send_many("users", st.NewRecord(value=b"v")), "one record", "[record]"),
    "one record to a partition": (
        lambda logs: st.append(logs["users", 0], st.NewRecord(value=b"v")),  # type: ignore[arg-type]
        "one record",
        "[record]",
    ),
    "bytes as records": (lambda logs: st.append(logs["users", 0], b"v"), "int", "NewRecord"),  # type: ignore[arg-type]
    "a dict as record": (lambda logs: logs.send_many("users", [{"value": b"v"}]), "dict", "NewRecord"),
    "no iterable": (lambda logs: logs.send_many("users", 7), "int", "NewRecord"),
    "no records": (lambda logs: st.append(logs["users", 0], []), "empty", "record"),
    "nothing": (lambda logs: logs.send("users"), "nothing", "tombstone"),
    "a record as a batch": (lambda logs: logs["users", 0].append(st.NewRecord()), "NewRecord", "st.append"),
    "a str as a batch": (lambda logs: logs["users", 0].append("text"), "str", "st.append"),
    "a topic to append to": (lambda logs: st.append(logs["users"], []), "TopicLogs", "logs["),  # type: ignore[arg-type]
    "seconds": (lambda logs: logs.send("users", b"v", timestamp=NOW // 1000), "seconds", str(NOW)),
    "a float": (lambda logs: logs.send("users", b"v", timestamp=NOW / 1000), "timestamp", "1000"),
    "a datetime": (lambda logs: logs.send("users", b"v", timestamp=datetime.now(UTC)), "timestamp", "ms"),
    "seconds to search": (lambda logs: logs["users", 0].offset_for_time(NOW // 1000), "seconds", str(NOW)),
    "seconds to start": (lambda _: AtTime(NOW // 1000), "seconds", str(NOW)),
    "seconds as now": (lambda logs: st.append(logs["users", 0], [], now_ms=NOW // 1000), "now_ms", str(NOW)),
    "a start of another type": (lambda logs: list(logs["users"].records(1.5)), "1.5", "AtTime"),
    "a number as key of the logs": (lambda logs: logs[0], "0", 'logs["users"]'),
    "a text as partition": (lambda logs: logs["users", "0"], "users", 'logs["users"]'),
    "a negative timeout": (lambda logs: logs["users"].follow(timeout=-1), "timeout", "None"),
    "a consumer without a topic": (lambda logs: logs.consumer("billing"), "topic", "logs.consumer"),
    "a consumer without a name": (lambda logs: logs.consumer("", "users"), "name", "billing"),
    "None as setting": (lambda logs: logs.topics.create("x", config={"flush.ms": None}), "None", "leave it"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_argument_is_refused_at_the_call(logs: LogManager, name: str) -> None:
    call, about, advice = WRONG[name]
    with raises_error(UsageError, about=about, advice=advice):
        call(logs)
    assert [log.log_end_offset for log in logs["users"].logs()] == [0, 0] and "x" not in logs


def test_a_single_log_refuses_nothing_and_a_str(tmp_path: Path) -> None:
    with st.Log(tmp_path / "events-0", upkeep=False) as log:
        for wrong in (
            log.append,
            lambda: log.append("text"),
            lambda: log.append_many(st.NewRecord(value=b"v")),
        ):  # type: ignore[arg-type]
            with raises_error(UsageError):
                wrong()
        assert log.append(key=b"deleted") == 0


def test_the_items_of_a_dict_and_names_of_any_bytes_are_headers(logs: LogManager) -> None:
    logs.send("users", b"v", headers={"h": b"1"}.items(), partition=0)  # type: ignore[arg-type]
    logs.send("users", b"v", headers=[(b"\xff", b"2"), ("\u00e4", None)], partition=0)
    assert [record.headers for record in logs["users", 0]] == [
        ((b"h", b"1"),),
        ((b"\xff", b"2"), (b"\xc3\xa4", None)),
    ]


def test_times_early_in_1970_and_bytearrays_are_records_like_others(logs: LogManager) -> None:
    sent = logs.send("users", bytearray(b"v"), partition=1, timestamp=5)  # type: ignore[arg-type]
    assert (sent.offset, sent.timestamp) == (0, 5)
    assert [record.value for record in logs["users", 1]] == [b"v"]


def test_settings_are_texts_numbers_bools_and_lists(tmp_path: Path) -> None:
    values = {"retention.ms": 3_600_000, "cleanup.policy": ["compact", "delete"], "preallocate": False}
    values["min.cleanable.dirty.ratio"] = 0.1
    with st.open(tmp_path / "logs", "a", config={"log.cleaner.threads": 2}) as logs:
        assert logs.config["log.cleaner.threads"] == 2
        created = logs.topics.create("users", config=values)  # type: ignore[arg-type]
        assert (
            created.config["cleanup.policy"] == "compact,delete" and created.config["preallocate"] == "false"
        )
        assert logs["users", 0].config.retention_ms == 3_600_000
        logs.topics.alter("users", {"retention.ms": -1})
        assert logs["users", 0].config.retention_ms == -1
        with raises_error(InvalidConfigError, about="retention.ms"):
            logs.topics.alter("users", {"retention.ms": 1.5})
    with st.Log(tmp_path / "one" / "events-0", config={"segment.bytes": 2000}, upkeep=False) as log:
        assert log.log.config.segment_bytes == 2000
    with raises_error(UsageError, about="config", advice="mode='a'"):
        st.open(tmp_path / "logs", config={})  # type: ignore[call-overload]
    with raises_error(UsageError, advice="path"):
        st.open([])


def test_a_topic_is_an_index_of_open_and_of_read_only_logs(tmp_path: Path, logs: LogManager) -> None:
    logs.send("users", b"0", partition=0)
    logs.send("users", b"1", partition=1)
    for source in (logs, st.open(tmp_path)):
        users = source["users"]
        assert (users.partitions, len(users), "users" in source, "x" in source) == ((0, 1), 2, True, False)
        assert ("users",) not in source and users[np.int64(1)] is source["users", np.int64(1)]  # type: ignore[index]
        assert ("users", 1) in source and TopicPartition("users", 2) not in source
        assert [(record.topic, record.partition, record.value) for record in users] == [
            ("users", 0, b"0"),
            ("users", 1, b"1"),
        ]
        assert [record.offset for record in users[1]] == [0]
        with raises_error(UnknownTopicError, advice='logs["users", 0]'):
            source["users-0"]
        with raises_error(UnknownTopicError, about="x"):
            source["x"]
        with raises_error(UnknownTopicError):
            users[2]
