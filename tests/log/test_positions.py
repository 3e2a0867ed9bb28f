"""Named positions: durable, of a small file that may be damaged, forged or huge."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from siltstone.base import files
from siltstone.base.config import LONG_MAX
from siltstone.base.errors import CorruptFileError, UsageError
from siltstone.log.names import TopicPartition
from siltstone.log.positions import BYTES_MAX, forget_positions, read_positions, write_positions
from tests.support.errors import raises_error
from tests.support.log.managed import failing

USERS, ORDERS = TopicPartition("users", 0), TopicPartition("orders", 3)


def test_positions_of_several_names_stand_side_by_side(tmp_path: Path) -> None:
    path = tmp_path / "positions.json"
    assert read_positions(path, "billing") == {}
    write_positions(path, "billing", {USERS: 7})
    write_positions(path, "audit", {USERS: LONG_MAX})
    write_positions(path, "billing", {ORDERS: 0})
    assert read_positions(path, "billing") == {USERS: 7, ORDERS: 0}
    assert read_positions(path, "audit") == {USERS: LONG_MAX}
    assert forget_positions(path, "audit") and not forget_positions(path, "audit")
    assert read_positions(path, "audit") == {} and read_positions(path, "billing")[USERS] == 7


def test_a_crash_leaves_the_old_positions_or_the_new_ones(tmp_path: Path) -> None:
    path, steps = tmp_path / "positions.json", list[files.Operation]()
    write_positions(path, "billing", {USERS: 1})
    with files.observe(steps.append):
        write_positions(path, "billing", {USERS: 2})
    assert len(steps) > 3
    for verb in {step[0] for step in steps}:
        write_positions(path, "billing", {USERS: 1})
        with failing(tmp_path, verb), pytest.raises(OSError):
            write_positions(path, "billing", {USERS: 2})
        assert read_positions(path, "billing")[USERS] in (1, 2)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[]",
        b"\xff\xfe",
        b'{"version":2,"positions":{}}',
        b'{"version":1,"positions":{"a":{"users":{"0":-1}}}}',
        b'{"version":1,"positions":{"a":{"users":{"0":9223372036854775808}}}}',
        b'{"version":1,"positions":{"a":{"users":{"0":1.5}}}}',
        b'{"version":1,"positions":{"a":{"users":{"0":"7"}}}}',
        b'{"version":1,"positions":{"a":{"users":{"-1":7}}}}',
        b'{"version":1,"positions":{"a":{"users":{"0x1":7}}}}',
        b'{"version":1,"positions":{"a":{"users":{"' + "٣".encode() + b'":7}}}}',
        b'{"version":1,"positions":{"a":{"users":{"' + b"9" * 5000 + b'":7}}}}',
        b'{"version":1,"positions":' + b'{"a":' * 5000,
        b'{"version":1,"positions":{"a":{"users":{"0":7}}}',
    ],
)
def test_a_damaged_or_forged_file_is_refused_and_never_written_over(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "positions.json"
    path.write_bytes(content)
    with raises_error(CorruptFileError, path=path, advice="remove it"):
        read_positions(path, "a")
    with raises_error(CorruptFileError, path=path):
        write_positions(path, "a", {USERS: 7})
    assert path.read_bytes() == content


def test_a_huge_file_is_refused_before_it_is_parsed(tmp_path: Path) -> None:
    path = tmp_path / "positions.json"
    path.touch()
    os.truncate(path, 1 << 40)
    with raises_error(CorruptFileError, path=path, position=BYTES_MAX):
        read_positions(path, "a")


def test_what_is_no_file_is_neither_read_nor_replaced(tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    write_positions(other, "a", {USERS: 7})
    before = other.read_bytes()
    (tmp_path / "directory").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(other)
    for name in ("directory", "pipe", "link"):
        with raises_error(CorruptFileError, path=tmp_path / name, about="regular file"):
            read_positions(tmp_path / name, "a")
        with raises_error(CorruptFileError, path=tmp_path / name):
            write_positions(tmp_path / name, "a", {USERS: 8})
    assert other.read_bytes() == before


@pytest.mark.parametrize("offset", [-1, LONG_MAX + 1])
def test_a_position_outside_of_every_log_is_not_written(tmp_path: Path, offset: int) -> None:
    with raises_error(UsageError, path="users-0", advice="seek"):
        write_positions(tmp_path / "positions.json", "a", {USERS: offset})
    assert not (tmp_path / "positions.json").exists()
