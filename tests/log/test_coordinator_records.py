"""Records of coordinators and of the cluster's metadata: which types and versions are known."""

from __future__ import annotations

import struct

import pytest

from siltstone.log.coordinator_records import decode_record


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
