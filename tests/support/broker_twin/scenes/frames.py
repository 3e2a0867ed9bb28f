"""ApiVersions, and frames that no client sends: what a broker answers to, and what ends the connection."""

from __future__ import annotations

import struct
from typing import Any

from tests.support.broker_twin import schemas
from tests.support.broker_twin.schemas import Message, uvarint
from tests.support.broker_twin.side import API_VERSIONS, FETCH, LIST_OFFSETS, METADATA, Side
from tests.support.broker_twin.wire import CLOSED, Connection, answer_of, header

LARGEST = 104_857_600


def api_versions(side: Side, versions: range) -> None:
    """What is announced, to good clients and bad ones."""
    for version in versions:
        client = {"client_software_name": "twin", "client_software_version": "1.0"}
        _announced(side, "plain", version, **client)
        if version >= 3:
            for what, name, number in (
                ("no name", "", "1"),
                ("no version", "twin", ""),
                ("bad name", "twin twin", "1"),
                ("bad version", "twin", "1/2"),
                ("name ends in a dot", "twin.", "1"),
                ("name begins with a dash", "-twin", "1"),
                ("dots and dashes", "a.b-c", "1.0-rc.1"),
                ("one letter", "a", "b"),
            ):
                fields = {"client_software_name": name, "client_software_version": number}
                _announced(side, what, version, **fields)
    for version in (5, 99, -1, 32767):
        frame = header(API_VERSIONS, version, 5, "twin", flexible=True) + b"\x05twin\x041.0\0"
        answer = _raw(side, frame)
        announced = CLOSED if answer is None else answer_of(API_VERSIONS, 0, answer)
        side.keep(f"unknown version {version}", announced)


def _announced(side: Side, what: str, version: int, **fields: Any) -> None:
    side.ask(what, API_VERSIONS, version, **fields)


def _raw(side: Side, frame: bytes) -> bytes | None:
    with Connection(side.bootstrap) as connection:
        connection.send_frame(frame)
        return connection.receive_frame()


def garbage(side: Side, versions: range) -> None:
    """Each on a connection of its own; then the broker still answers."""
    for what, sent in _bytes().items():
        with Connection(side.bootstrap) as connection:
            connection.socket.sendall(sent)
            side.keep(what, _kind(connection))
    for what, sent in _unfinished().items():
        with Connection(side.bootstrap) as connection:
            connection.socket.sendall(sent)
            side.keep(what, connection.is_quiet())
    for what, frame in _frames().items():
        with Connection(side.bootstrap) as connection:
            connection.send_frame(frame)
            side.keep(what, _kind(connection))
    _order(side)
    side.keep("still there", {"error_code": side.quietly(API_VERSIONS, versions[0])["error_code"]})


def _kind(connection: Connection) -> Message:
    """An answer, or the end of the connection."""
    return CLOSED if connection.receive_frame() is None else {"answered": True}


def _bytes() -> dict[str, bytes]:
    return {
        "length 0": struct.pack(">i", 0),
        "length -1": struct.pack(">i", -1),
        "length of 2 GiB": struct.pack(">i", 2**31 - 1),
        "length one too large": struct.pack(">i", LARGEST + 1),
        "a web browser": b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    }


def _unfinished() -> dict[str, bytes]:
    """A broker waits for the rest."""
    return {
        "length just allowed": struct.pack(">i", LARGEST),
        "half a length": b"\0\0",
        "half a frame": struct.pack(">i", 30) + b"\0\x12\0\0",
    }


def _frames() -> dict[str, bytes]:
    """Frames whole in length."""
    listing = schemas.encode(schemas.schema(LIST_OFFSETS, 1, "request"), {"replica_id": -1, "topics": []})
    listing_header = header(LIST_OFFSETS, 1, 1, "twin", flexible=False)
    flexible = header(METADATA, 12, 1, "twin", flexible=True)
    everything = b"\0\x01\0\0"
    return {
        "one byte": b"\0",
        "header's half": listing_header[:6],
        "header only": listing_header,
        "null client": header(LIST_OFFSETS, 1, 1, None, flexible=False) + listing,
        "empty client": header(LIST_OFFSETS, 1, 1, "", flexible=False) + listing,
        "client not UTF-8": struct.pack(">hhih", LIST_OFFSETS, 1, 1, 2) + b"\xff\xfe" + listing,
        "client's length beyond": struct.pack(">hhih", LIST_OFFSETS, 1, 1, 999) + listing,
        "client's length -2": struct.pack(">hhih", LIST_OFFSETS, 1, 1, -2) + listing,
        "bytes behind": listing_header + listing + b"behind",
        "half a body": listing_header + listing[:-2],
        "array of 2^31-1": listing_header + struct.pack(">ii", -1, 2**31 - 1),
        "array of -1": listing_header + struct.pack(">ii", -1, -1),
        "array of -2": listing_header + struct.pack(">ii", -1, -2),
        "unknown key": header(999, 0, 1, "twin", flexible=False),
        "negative key": header(-1, 0, 1, "twin", flexible=False),
        "unknown version": header(LIST_OFFSETS, 99, 1, "twin", flexible=True),
        "version 0": header(LIST_OFFSETS, 0, 1, "twin", flexible=False) + listing,
        "negative version": header(LIST_OFFSETS, -1, 1, "twin", flexible=False) + listing,
        "older Fetch": header(FETCH, 3, 1, "twin", flexible=False),
        "inter-broker key": header(4, 7, 1, "twin", flexible=True) + b"\0" * 40,
        "all topics": flexible + everything,
        "unknown tag": flexible + everything[:-1] + b"\x01\x63\x03abc",
        "unknown tag in the header": flexible[:-1] + b"\x01\x63\x03abc" + everything,
        "tags out of order": flexible + everything[:-1] + b"\x02\x63\x00\x62\x00",
        "tag's size beyond": flexible + everything[:-1] + b"\x01\x63\x7fabc",
        "tag count beyond": flexible + everything[:-1] + b"\xff\xff\xff\xff\x07",
        "array of 2^32-1": flexible + b"\xff\xff\xff\xff\x0f" + everything[1:],
        "array of 2^31-2": flexible + uvarint(2**31 - 1) + everything[1:],
        "endless varint": flexible + b"\xff" * 12,
        "ApiVersions with rubbish": header(API_VERSIONS, 3, 1, "twin", flexible=True) + b"\xff" * 9,
        "ApiVersions without body": header(API_VERSIONS, 3, 1, "twin", flexible=True),
    }


def _order(side: Side) -> None:
    """Requests sent together are answered one after another, though the first one waits."""
    with Connection(side.bootstrap) as connection:
        waiting = {"replica_id": -1, "max_wait": 150, "min_bytes": 1, "max_bytes": 1000, "topics": []}
        numbers = [
            connection.send(FETCH, 11, waiting),
            connection.send(LIST_OFFSETS, 9, {"replica_id": -1, "topics": []}),
            connection.send(API_VERSIONS, 0, {}),
        ]
        received = [connection.receive() for _ in numbers]
        side.keep("order", {"in order": [response and response[0] for response in received] == numbers})
