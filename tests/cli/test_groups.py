"""``groups``: consumer groups of a directory, as kafka-consumer-groups shows them."""

from __future__ import annotations

import base64
import random
import uuid
from pathlib import Path
from typing import Any

import pytest

from siltstone.base.errors import UnknownGroupError
from siltstone.commands.directories import BrokerDirectories
from siltstone.commands.groups import ConsumerGroup, read_groups
from siltstone.log.coordinator_records import decode_record
from tests.support import coordinator_records as encoded
from tests.support.cleaning.logs import Rec, batch
from tests.support.cleaning.transactional import marker
from tests.support.command_line import Command, tree
from tests.support.errors import raises_error
from tests.support.tables.tables import log_directory

ORDERS = uuid.UUID(int=0x1234 << 80 | 5)
Records = list[tuple[bytes | None, bytes | None]]


def batches(records: Records, start: int = 0, **shape: object) -> bytes:
    """One batch with these keys and values."""
    return batch([Rec(offset=start + at, key=k, value=v) for at, (k, v) in enumerate(records)], **shape)


def broker(root: Path, *offsets: bytes) -> Path:
    """A stopped broker: ``orders-0`` and ``-1`` end at 10, ``__consumer_offsets-0`` has these batches."""
    ten: Records = [(b"k", b"v")] * 10
    directory = log_directory(
        root,
        {
            "orders-0": {0: [batches(ten)]},
            "orders-1": {0: [batches(ten)]},
            "__consumer_offsets-0": {0: offsets},
        },
    )
    topic_id = base64.urlsafe_b64encode(ORDERS.bytes).decode().rstrip("=")
    for number in (0, 1):
        (directory / f"orders-{number}" / "partition.metadata").write_text(
            f"version: 0\ntopic_id: {topic_id}\n"
        )
    return directory


def groups_in(directory: Path, *names: str) -> tuple[list[ConsumerGroup], list[str]]:
    return read_groups(BrokerDirectories(paths=(directory,)).snapshot(), names)


def offsets_of(group: ConsumerGroup) -> dict[str, int | None]:
    return {str(offset.topic_partition): offset.current_offset for offset in group.offsets}


CLASSIC: Records = [
    (encoded.commit_key("billing", "orders", 0), encoded.commit(4)),
    (encoded.commit_key("billing", "orders", 1), encoded.commit(10)),
    (encoded.commit_key("billing", "gone", 0), encoded.commit(1)),
    (encoded.commit_key("dead", "orders", 0), encoded.commit(1)),
    (encoded.commit_key("billing", "orders", 0), encoded.commit(12, "note")),
    (encoded.commit_key("dead", "orders", 0), None),
    (
        encoded.key(2, "billing"),
        encoded.group({"m1": encoded.assignment({"orders": [1, 0], "new": [0]}), "m2": b""}),
    ),
]


def test_offsets_lag_and_members_of_a_group(siltstone: Command, tmp_path: Path) -> None:
    directory = broker(tmp_path / "logs", batches(CLASSIC))
    before = tree(directory)
    shown = siltstone("groups", directory)
    assert shown.status == 0 and shown.err.count("\n") == 1 and "gone-0, new-0" in shown.err
    assert [line.split() for line in shown.lines] == [
        "GROUP TOPIC PARTITION CURRENT-OFFSET LOG-END-OFFSET LAG CONSUMER-ID HOST CLIENT-ID".split(),
        "billing gone 0 1 - - - - -".split(),
        "billing new 0 - - - m1 /10.0.0.1 client".split(),
        "billing orders 0 12 10 -2 m1 /10.0.0.1 client".split(),
        "billing orders 1 10 10 0 m1 /10.0.0.1 client".split(),
    ]
    by_flag = siltstone("groups", "--dir", directory, "--describe", "--all-groups", "--offsets")
    assert (by_flag.out, by_flag.err) == (shown.out, shown.err)
    assert tree(directory) == before


def test_names_states_and_members_as_kafkas_flags_have_them(siltstone: Command, tmp_path: Path) -> None:
    directory = broker(
        tmp_path / "logs",
        batches([*CLASSIC, (encoded.commit_key("audit", "orders", 0), encoded.commit(0))]),
    )
    assert siltstone("groups", directory, "--list").lines == ["audit", "billing"]
    states = [
        "GROUP TYPE ASSIGNMENT-STRATEGY STATE #MEMBERS".split(),
        "audit Classic - Empty 0".split(),
        "billing Classic range Stable 2".split(),
    ]
    for flags in (["--list", "--state"], ["--describe", "--state"]):
        assert [line.split() for line in siltstone("groups", directory, *flags).lines] == states
    members = siltstone("groups", directory, "--members", "--verbose", "--group", "billing").lines
    assert [line.split() for line in members] == [
        "GROUP CONSUMER-ID GROUP-INSTANCE-ID HOST CLIENT-ID #PARTITIONS ASSIGNMENT".split(),
        "billing m1 - /10.0.0.1 client 3 new(0),orders(0,1)".split(),
        "billing m2 - /10.0.0.1 client 0 -".split(),
    ]
    both = siltstone("groups", directory, "--members", "--verbose")
    assert both.lines == members and "Consumer group 'audit' has no active members." in both.err
    chosen = siltstone("groups", directory, "--group", "billing", "--group", "audit", "--json").document
    assert [group["name"] for group in chosen["groups"]] == ["audit", "billing"]


@pytest.mark.parametrize(
    "flags",
    [
        ("--list", "--describe"),
        ("--list", "--members"),
        ("--group", "a", "--all-groups"),
        ("--members", "--state"),
        ("--verbose",),
    ],
)
def test_flags_that_exclude_each_other_are_refused(
    siltstone: Command, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    refused = siltstone("groups", broker(tmp_path / "logs", batches(CLASSIC)), *flags)
    assert (refused.status, refused.out) == (2, b"") and refused.err.count("\n") == 1


def test_a_missing_group_is_an_error(siltstone: Command, tmp_path: Path) -> None:
    directory = broker(tmp_path / "logs", batches(CLASSIC))
    with raises_error(UnknownGroupError, path="dead", advice="--list"):
        groups_in(directory, "dead")
    refused = siltstone("groups", directory, "--group", "dead")
    assert (refused.status, refused.out) == (1, b"") and "GROUP_ID_NOT_FOUND" in refused.err
    assert siltstone("groups", "--group", "dead").status == 2


def test_a_directory_without_consumer_offsets_has_no_groups(siltstone: Command, logs: Path) -> None:
    shown = siltstone("groups", logs, "--json")
    assert (shown.status, shown.document) == (0, {"groups": [], "failures": []})


@pytest.mark.parametrize(
    ("epoch", "target", "member", "state"),
    [
        (5, 5, (5, 0), "Stable"),
        (6, 5, (5, 0), "Assigning"),
        (5, 5, (4, 0), "Reconciling"),
        (5, 5, (5, 1), "Reconciling"),
    ],
)
def test_groups_of_the_consumer_protocol(
    tmp_path: Path, epoch: int, target: int, member: tuple[int, int], state: str
) -> None:
    unknown = uuid.UUID(int=9)
    records: Records = [
        (encoded.key(3, "g"), encoded.consumer_epoch(epoch)),
        (encoded.key(4, "g"), b"\x00\x00\x01\x00"),
        (encoded.key(5, "g", "m"), encoded.consumer_member("app")),
        (encoded.key(5, "g", "left"), None),
        (encoded.key(6, "g"), encoded.consumer_epoch(target)),
        (encoded.key(7, "g", "m"), b"\x00\x00\x01\x00"),
        (
            encoded.key(8, "g", "m"),
            encoded.current_assignment(member[0], {ORDERS: [1, 0], unknown: [3]}, member[1]),
        ),
        (encoded.key(16, "g", "o.*"), b"\x00\x00\x02" + encoded.compact("orders") + bytes(17)),
        (encoded.commit_key("g", "orders", 0), encoded.commit(3)),
        (encoded.key(11, "of a share group"), b"\x00\x00"),
        (encoded.key(17, "of a streams group"), b"\x00\x00"),
    ]
    (group,), failures = groups_in(broker(tmp_path / "logs", batches(records)))
    assert failures == []
    assert (group.type, group.state, group.generation) == ("Consumer", state, epoch)
    (only,) = group.members
    assert (only.member_id, only.client_id, only.host, only.instance_id) == ("m", "app", "/10.0.0.2", "i1")
    assert [str(place) for place in only.assigned] == ["AAAAAAAAAAAAAAAAAAAACQ-3", "orders-0", "orders-1"]
    assert offsets_of(group)["orders-0"] == 3 and offsets_of(group)["orders-1"] is None


def test_a_streams_group_that_has_committed_offsets_is_left_out(tmp_path: Path) -> None:
    records: Records = [
        (encoded.commit_key("streams-app", "orders", 0), encoded.commit(3)),
        (encoded.key(17, "streams-app"), b"\x00\x00"),
        (encoded.commit_key("deleted", "orders", 0), encoded.commit(3)),
        (encoded.key(17, "deleted"), b"\x00\x00"),
        (encoded.key(17, "deleted"), None),
    ]
    directory = broker(tmp_path / "logs", batches(records))
    (group,), failures = groups_in(directory)
    assert (group.name, failures) == ("deleted", [])
    with raises_error(UnknownGroupError, path="streams-app"):
        groups_in(directory, "streams-app")


def test_a_key_of_a_regular_expression_that_cannot_be_decoded_is_named(tmp_path: Path) -> None:
    records: Records = [(encoded.key(16) + b"\x00\x09g", b"\x00\x00")]
    groups, (failure,) = groups_in(broker(tmp_path / "logs", batches(records)))
    assert groups == [] and failure.startswith("__consumer_offsets-0: offset 0: ")


def test_offsets_of_aborted_and_open_transactions_do_not_count(siltstone: Command, tmp_path: Path) -> None:
    def commits(start: int, offset: int, producer: int) -> bytes:
        keys = [encoded.commit_key("g", "orders", number) for number in (0, 1)]
        shape = {"producer_id": producer, "producer_epoch": 0, "base_sequence": 0, "transactional": True}
        return batches([(key, encoded.commit(offset)) for key in keys], start, **shape)

    without_transaction = [(encoded.commit_key("g", "orders", 0), encoded.commit(1))]
    directory = broker(
        tmp_path / "logs",
        batches(without_transaction),
        commits(1, 5, producer=7),
        marker(3, 7, commit=True),
        commits(4, 8, producer=7),
        marker(6, 7, commit=False),
        commits(7, 9, producer=8),  # open
        batches([(encoded.commit_key("later", "orders", 0), encoded.commit(2))], 9),
    )
    (directory / ".kafka_cleanshutdown").unlink()
    assert siltstone("recover", directory).status == 0  # writes the .txnindex and the producers' snapshot
    (group, later), failures = groups_in(directory)
    assert (offsets_of(group), failures) == ({"orders-0": 5, "orders-1": 5}, [])
    assert offsets_of(later) == {"orders-0": 2}


def test_what_cannot_be_read_is_named_and_the_rest_is_shown(siltstone: Command, tmp_path: Path) -> None:
    records: Records = [
        *CLASSIC,
        (encoded.key(2, "broken"), b"\x00\x03\x00\x05ab"),
        (encoded.key(2, "odd"), encoded.group({"m": b"\x00\x01\x7f\xff\xff\xff"})),
        (encoded.key(2, "connect"), encoded.group({"w": b"\x00\x01\xff"}, "connect")),
        (b"\x00", b""),
    ]
    directory = broker(tmp_path / "logs", batches(records))
    (directory / "orders-1" / f"{0:020}.log.swap").write_bytes(b"")
    shown = siltstone("groups", directory, "--json")
    assert shown.status == 1
    failures = shown.document["failures"]
    assert [line.split(": ")[:2] for line in failures[:3]] == [
        ["__consumer_offsets-0", f"offset {at}"] for at in (7, 8, 10)
    ]
    assert failures[3].startswith("orders-1: ") and len(failures) == 4
    groups = {group["name"]: group for group in shown.document["groups"]}
    assert groups.keys() == {"billing", "connect"} and groups["connect"]["state"] == "Stable"
    ends = {(row["topic"], row["partition"]): row["log_end_offset"] for row in groups["billing"]["offsets"]}
    assert (ends["orders", 0], ends["orders", 1]) == (10, None)

    (segment,) = (directory / "__consumer_offsets-0").glob("*.log")
    content = bytearray(segment.read_bytes())
    content[-1] ^= 1
    segment.write_bytes(content)
    damaged = siltstone("groups", directory, "--list")
    assert (damaged.status, damaged.out) == (1, b"") and "__consumer_offsets-0" in damaged.err


def test_names_in_records_do_not_control_the_terminal(siltstone: Command, tmp_path: Path) -> None:
    records: Records = [(encoded.commit_key("\x1b[2J\n", "orders", -5), encoded.commit(-1))]
    directory = broker(tmp_path / "logs", batches(records))
    for flags in ((), ("--list",), ("--state",), ("--members",)):
        shown = siltstone("groups", directory, *flags)
        assert b"\x1b" not in shown.out and "\x1b" not in shown.err and shown.status == 0
    assert siltstone("groups", directory).lines[1].split()[-7:] == "-5 - - - - - -".split()


@pytest.mark.parametrize("kind", [3, 4, 5, 6, 7, 8, 16])
def test_values_of_the_consumer_protocol_are_decoded_or_said_to_be_undecodable(kind: int) -> None:
    noise = random.Random(kind)
    names = ("g",) if kind in (3, 4, 6) else ("g", "m")
    for _ in range(300):
        value = b"\x00\x00" + noise.randbytes(noise.randrange(60))
        row: dict[str, Any] = decode_record("offsets", encoded.key(kind, *names), value)
        assert row["decodedKey"]["data"]["groupId"] == "g"
        assert ("undecodable" in row) != ("decodedValue" in row)


def test_a_member_that_uses_the_classic_protocol_has_its_metadata() -> None:
    """Tag 0 of ``ConsumerGroupMemberMetadataValue`` is a structure that may be null (KIP-893)."""
    member = encoded.consumer_member("client")
    assert member.endswith(b"\x01\x05\x01x"), "the tagged fields are one that is unknown"
    for field, expected in (
        (
            b"\x01\x02" + encoded.compact("range") + b"\x04abc\x00\x00",
            [{"name": "range", "metadata": "YWJj"}],
        ),
        (b"\xff", None),
    ):
        value = member[:-4] + bytes([1, 0, len(field)]) + field
        row = decode_record("offsets", encoded.key(5, "g", "m"), value)
        metadata = row["decodedValue"]["data"]["classicMemberMetadata"]
        assert metadata == (expected if expected is None else {"supportedProtocols": expected})
    torn = member[:-4] + b"\x01\x00\x02\x01\x02"
    assert decode_record("offsets", encoded.key(5, "g", "m"), torn)["undecodable"].startswith("value: ")


def test_bytes_after_a_coordinators_message_are_ignored_as_in_kafka() -> None:
    row = decode_record("offsets", encoded.commit_key("g", "t", 0) + b"more", encoded.commit(5) + b"more")
    assert row["decodedKey"]["data"]["group"] == "g" and row["decodedValue"]["data"]["offset"] == 5
