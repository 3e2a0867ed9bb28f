"""Slices of files that the kernel sends into a socket."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from siltstone.base import files

CONTENT = bytes(range(256)) * 8192
Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Two connected sockets; the first does not block."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        yield ours, theirs


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "log"
    path.write_bytes(CONTENT)
    return path


def test_a_slice_is_sent_from_where_it_begins(path: Path, pair: Pair) -> None:
    ours, theirs = pair
    piece = files.FileSlice(files.Reader(path), 300, 1000)
    assert piece.send(ours.fileno()) == 1000
    assert theirs.recv(2000) == CONTENT[300:1300]
    assert piece.send(ours.fileno(), 990) == 10
    assert theirs.recv(2000) == CONTENT[1290:1300]


def test_a_slice_continues_when_the_socket_takes_more(path: Path, pair: Pair) -> None:
    ours, theirs = pair
    piece, sent, received = files.FileSlice(files.Reader(path), 1, len(CONTENT) - 1), 0, bytearray()
    is_full = False
    while sent < len(piece):
        try:
            sent += piece.send(ours.fileno(), sent)
        except BlockingIOError:
            is_full = True
            received += theirs.recv(1 << 20)
    while len(received) < len(piece):
        received += theirs.recv(1 << 20)
    assert is_full
    assert received == CONTENT[1:]


def test_a_file_that_was_renamed_and_removed_is_sent(path: Path, pair: Pair) -> None:
    ours, theirs = pair
    piece = files.FileSlice(files.Reader(path), 0, 100)
    renamed = path.with_suffix(".deleted")
    path.rename(renamed)
    path.write_bytes(b"another file")
    renamed.unlink()
    assert piece.send(ours.fileno()) == 100
    assert theirs.recv(200) == CONTENT[:100]


def test_a_file_that_was_truncated_sends_nothing(path: Path, pair: Pair) -> None:
    ours, _ = pair
    piece = files.FileSlice(files.Reader(path), 500, 1000)
    path.write_bytes(CONTENT[:500])
    assert piece.send(ours.fileno()) == 0


def test_a_socket_that_was_closed_is_an_error(path: Path, pair: Pair) -> None:
    ours, theirs = pair
    theirs.close()
    with pytest.raises(BrokenPipeError):
        files.FileSlice(files.Reader(path), 0, 100).send(ours.fileno())
