"""Records of ``__remote_log_metadata``, as Kafka 4.3 wrote them and damaged."""

from __future__ import annotations

import pytest

from siltstone.base.records.metadata import UndecodableMessageError
from siltstone.log.names import TopicPartition
from siltstone.log.tiered.layouts import Layout, parse_remote_file
from siltstone.log.tiered.remote_metadata import (
    COPY_FINISHED,
    RemoteState,
    RemoteStates,
    apply_remote_record,
)

# The first two records of a broker's topic: the copy of a segment begins and is finished.
STARTED = bytes.fromhex(
    "010000076f7264657273444da414a7ae4e659b571b73899b56f5000000000065fa6aef11494991b042f02310b3933e00"
    "000000000000000000000000000003fb00000001000001a2198845a2000001a2198848e20200000000000000000000"
    "000000000fb451000001000101"
)
FINISHED = bytes.fromhex(
    "010100076f7264657273444da414a7ae4e659b571b73899b56f5000000000065fa6aef11494991b042f02310b3933e00"
    "00000001000001a21988497d000100"
)
PLACE = TopicPartition("orders", 0), "RE2kFKeuTmWbVxtziZtW9Q"
SEGMENT = "Zfpq7xFJSZGwQvAjELOTPg"


def test_states_are_those_of_the_last_record() -> None:
    states: RemoteStates = {}
    apply_remote_record(states, STARTED)
    began = RemoteState(
        start_offset=0, end_offset=1019, epochs=((0, 0),), event_ms=1_795_724_691_682, state=0
    )
    assert states == {PLACE: {SEGMENT: began}}
    apply_remote_record(states, FINISHED)
    assert states[PLACE][SEGMENT].state == COPY_FINISHED
    deleted = FINISHED[:-2] + b"\x03\0"
    apply_remote_record(states, deleted)
    assert states[PLACE][SEGMENT].state == 3


def test_custom_metadata_of_a_plugin_is_skipped() -> None:
    states: RemoteStates = {}
    apply_remote_record(states, STARTED)
    apply_remote_record(states, FINISHED[:-3] + b"\x04abc" + FINISHED[-2:])
    assert states[PLACE][SEGMENT].state == COPY_FINISHED


def test_an_update_without_its_first_record_is_none() -> None:
    states: RemoteStates = {}
    apply_remote_record(states, FINISHED)
    assert states == {PLACE: {}}


@pytest.mark.parametrize("value", [STARTED, FINISHED])
def test_each_truncation_is_an_error_or_says_nothing_else(value: bytes) -> None:
    for size in range(len(value) - 1):
        states: RemoteStates = {}
        try:
            apply_remote_record(states, value[:size])
        except UndecodableMessageError:
            continue
        assert size >= len(value) - 5  # only tagged fields, which are not read, are missing


@pytest.mark.parametrize(
    "value", [b"\x02" + STARTED[1:], FINISHED[:-2] + b"\x04\0", FINISHED[:-2] + b"\xff\0"]
)
def test_unknown_frames_and_states_are_errors(value: bytes) -> None:
    states: RemoteStates = {}
    apply_remote_record(states, STARTED)
    with pytest.raises(UndecodableMessageError) as raised:
        apply_remote_record(states, value)
    assert (raised.value.position == 0) == (value[:1] == b"\2"), "a frame's version is its first byte"


def test_other_records_change_nothing() -> None:
    states: RemoteStates = {}
    apply_remote_record(states, b"\x01\x09\x00whatever")
    assert states == {}


def test_names_of_both_layouts() -> None:
    place = TopicPartition("a-b", 7)
    topic_id = "MWJ6FHTfRYy67jzwZdeqSQ"
    assert Layout.AIVEN.folder(place, topic_id) == f"a-b-{topic_id}/7"
    assert Layout.LOCAL.folder(place, topic_id) == f"a-b-7-{topic_id}"
    assert Layout.AIVEN.topic_ids(place, [f"a-b-{topic_id}", f"a-bc-{topic_id}", f"a-b-7-{topic_id}"]) == {
        topic_id
    }
    name = parse_remote_file("00000000000000001234-tqimKeZwStOEOwRzT3L5oQ.rsm-manifest")
    assert name is not None
    assert tuple(name) == (1234, "tqimKeZwStOEOwRzT3L5oQ", "rsm-manifest")
    assert parse_remote_file("7-tqimKeZwStOEOwRzT3L5oQ.log") is not None
    for wrong in (
        "99999999999999999999-tqimKeZwStOEOwRzT3L5oQ.log",
        "00000000000000001234-tqimKeZwStOEOwRzT3L5o.log",
        "00000000000000001234-tqimKeZwStOEOwRzT3L5oQ.log.tmp",
        "00000000000000001234-tqimKeZwStOEOwRzT3L5oQ.log\n",
        "../0-tqimKeZwStOEOwRzT3L5oQ.log",
    ):
        assert parse_remote_file(wrong) is None
