r"""How records are written for people and programs: kcat's format strings and JSON envelopes.

::

    %t topic   %p partition   %o offset   %k key   %s value   %h headers (a=b,c=d)
    %T time in ms   %K, %S sizes of key and value (-1: null)   %R the value's size in 4 bytes   %% a percent
    \n \r \t \\ \xNN
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Sequence

from siltstone.base.errors import UsageError
from siltstone.log.names import TopicPartition
from siltstone.log.reading import Record

_ESCAPE = re.compile(rb"\\(?:x([0-9a-fA-F]{2})|(.)|$)", re.DOTALL)
_ESCAPES = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"\\": b"\\", b"0": b"\0"}
_TOKEN = re.compile(r"%(.|$)", re.DOTALL)

Piece = Callable[[TopicPartition, Record], bytes]


def delimiter(text: str, flag: str) -> bytes:
    r"""The bytes that a delimiter means, ``\n``, ``\t`` and ``\xNN`` resolved. Raises UsageError."""
    found = unescape(text, flag)
    if not found:
        raise UsageError(f"{flag} '': give at least one character")
    return found


def unescape(text: str, flag: str) -> bytes:
    """``text`` as bytes, escapes resolved. Raises UsageError for an unknown one."""

    def replaced(match: re.Match[bytes]) -> bytes:
        if match[1] is not None:
            return bytes.fromhex(match[1].decode())
        known = _ESCAPES.get(match[2] or b"")
        if known is None:
            raise UsageError(
                f"{flag} {text!r}: {match[0].decode(errors='replace')} is none of \\n \\r \\t \\\\ \\xNN"
            )
        return known

    return _ESCAPE.sub(replaced, text.encode("utf-8", "surrogateescape"))


class RecordFormat:
    """A compiled format string. ``null`` stands for keys and values that are null.

    ``clean`` makes contents fit for a terminal, where somebody else's bytes must not give orders.
    """

    def __init__(
        self, text: str, *, null: bytes = b"", clean: Callable[[bytes], bytes] = lambda raw: raw
    ) -> None:
        """Raises UsageError for a token that is not known."""
        self._null, self._clean = null, clean
        self._pieces: list[bytes | Piece] = []
        position = 0
        for match in _TOKEN.finditer(text):
            self._pieces += [unescape(text[position : match.start()], "-f"), self._piece(match[1], text)]
            position = match.end()
        self._pieces.append(unescape(text[position:], "-f"))

    def _piece(self, letter: str, text: str) -> bytes | Piece:
        pieces: dict[str, bytes | Piece] = {
            "%": b"%",
            "t": lambda where, record: where.topic.encode(),
            "p": lambda where, record: b"%d" % where.partition,
            "o": lambda where, record: b"%d" % record.offset,
            "k": lambda where, record: self._content(record.key),
            "s": lambda where, record: self._content(record.value),
            "K": lambda where, record: b"%d" % _size(record.key),
            "S": lambda where, record: b"%d" % _size(record.value),
            "R": lambda where, record: _size(record.value).to_bytes(4, "big", signed=True),
            "T": lambda where, record: b"%d" % record.timestamp,
            "h": lambda where, record: self._headers(record),
        }
        if letter not in pieces:
            raise UsageError(f"-f {text!r}: %{letter} is none of {' '.join(f'%{each}' for each in pieces)}")
        return pieces[letter]

    def _content(self, raw: bytes | None) -> bytes:
        return self._null if raw is None else self._clean(raw)

    def _headers(self, record: Record) -> bytes:
        return b",".join(
            self._clean(name) + b"=" + (b"NULL" if value is None else self._clean(value))
            for name, value in record.headers
        )

    def render(self, where: TopicPartition, record: Record) -> bytes:
        """One record."""
        return b"".join(each if isinstance(each, bytes) else each(where, record) for each in self._pieces)


def _size(raw: bytes | None) -> int:
    return -1 if raw is None else len(raw)


def envelope(where: TopicPartition, record: Record, *, log_append: bool, broker: int) -> dict[str, object]:
    """A record as kcat -J has it; what is not UTF-8 is in ``key_base64``, ``payload_base64`` instead."""
    kind = "unknown" if record.timestamp < 0 else "logappend" if log_append else "create"
    found: dict[str, object] = {
        "topic": where.topic,
        "partition": where.partition,
        "offset": record.offset,
        "tstype": kind,
        "ts": record.timestamp,
        "broker": broker,
    }
    if record.headers:
        found["headers"] = _flat(record.headers)
    for name, raw in (("key", record.key), ("payload", record.value)):
        try:
            found[name] = None if raw is None else raw.decode("utf-8")
        except UnicodeDecodeError:
            assert raw is not None
            found[f"{name}_base64"] = base64.b64encode(raw).decode("ascii")
    return found


def _flat(headers: Sequence[tuple[bytes, bytes | None]]) -> list[str | None]:
    """Names and values in turn; bytes that are not UTF-8 are escaped."""
    parts = (part for pair in headers for part in pair)
    return [None if part is None else part.decode("utf-8", "backslashreplace") for part in parts]
