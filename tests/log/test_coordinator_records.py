"""Records of coordinators and of the cluster's metadata: which types and versions are known."""

from __future__ import annotations

import struct

import pytest

from siltstone.log.coordinator_records import Decoder, decode_record


def string(text: bytes) -> bytes:
    return struct.pack(">h", len(text)) + text


@pytest.mark.parametrize("number", [3, 4, 5, 6, 7, 8, 16])
def test_the_keys_of_consumer_groups_are_known(number: int) -> None:
    """KIP-848: the group, and in some types a member or a regular expression."""
    row = decode_record("offsets", struct.pack(">h", number) + string(b"group") + string(b"other"), None)
    assert row["decodedKey"]["type"] == str(number)
    assert row["decodedKey"]["data"]["groupId"] == "group"
    assert row["decodedValue"] == "<DELETE>"


@pytest.mark.parametrize("number", [4, 7, 8, 9, 12, 14, 15, *range(18, 29)])
def test_a_version_of_a_metadata_record_that_is_not_known_is_shown_without_its_fields(number: int) -> None:
    """These record types have version 0 only."""
    decoded = decode_record("metadata", None, bytes([1, number, 1, 0]))["decodedValue"]
    assert decoded["version"] == 1 and "data" not in decoded


def test_a_metadata_record_without_a_value_is_a_tombstone() -> None:
    assert decode_record("metadata", None, None) == {"decodedValue": "<DELETE>"}


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_broker_that_registered_with_an_older_version_has_the_fields_of_that_version(version: int) -> None:
    """``isMigratingZkBroker`` is there since version 2, ``inControlledShutdown`` since 1."""
    is_migrating, is_stopping = b"\1" * (version >= 2), b"\1" * (version >= 1)
    body = struct.pack(">i", 7) + is_migrating + bytes(16) + struct.pack(">q", 99)
    end_point = b"\2A" + b"\2h" + struct.pack(">Hh", 9092, 0) + b"\0"
    body += b"\2" + end_point + b"\1" + b"\0" + b"\1" + is_stopping + b"\0"
    decoded = decode_record("metadata", None, bytes([1, 0, version]) + body)["decodedValue"]
    data = decoded["data"]
    assert (data["brokerId"], data["brokerEpoch"], data["fenced"]) == (7, 99, True)
    assert data["endPoints"] == [{"name": "A", "host": "h", "port": 9092, "securityProtocol": 0}]
    assert ("isMigratingZkBroker" in data, "inControlledShutdown" in data) == (version >= 2, version >= 1)


def a_member(version: int) -> bytes:
    """A member of a group as versions 0 to 3 have it: a rebalance timeout since 1, an instance id since 3."""
    instance_id = struct.pack(">h", -1) if version >= 3 else b""
    timeouts = struct.pack(">ii", 300, 10)[0 if version >= 1 else 4 :]
    ids = string(b"m") + instance_id + string(b"client") + string(b"host")
    return ids + timeouts + struct.pack(">i", 0) + struct.pack(">i", 0)


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_a_groups_members_have_the_fields_of_its_version(version: int) -> None:
    state_time = struct.pack(">q", 5) if version >= 2 else b""
    value = struct.pack(">h", version) + string(b"consumer") + struct.pack(">i", 4) + string(b"range")
    value += string(b"m") + state_time + struct.pack(">i", 1) + a_member(version)
    row = decode_record("offsets", struct.pack(">h", 2) + string(b"group"), value)
    (member,) = row["decodedValue"]["data"]["members"]
    assert (member["memberId"], member["sessionTimeout"]) == ("m", 10)
    assert member.get("rebalanceTimeout") == (300 if version >= 1 else None)
    assert ("groupInstanceId" in member) == (version >= 3)


NEWEST = {0: 4, 1: 4, 2: 4, 3: 0, 4: 0, 5: 0, 6: 0, 7: 0, 8: 0, 16: 0}
"""The newest version of the values of each type in ``__consumer_offsets`` (Kafka 4.3's message schemas)."""
UNKNOWN = [("offsets", number, version) for number, newest in NEWEST.items() for version in (-1, newest + 1)]


@pytest.mark.parametrize(("decoder", "number", "version"), [*UNKNOWN, ("transactions", 0, 2)])
def test_a_value_with_an_unknown_version_is_not_guessed(decoder: Decoder, number: int, version: int) -> None:
    key = struct.pack(">h", number) + string(b"group") + string(b"other") + bytes(4)
    row = decode_record(decoder, key, struct.pack(">h", version) + bytes(40))
    assert "decodedKey" in row and "decodedValue" not in row
    assert f"version {version} is unknown" in row["undecodable"]
