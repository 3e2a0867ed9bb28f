"""Decodes keys, values and headers to text for display: ``decode`` returns the text, its kind, and the size
of all bytes.

``auto`` takes the first that fits: a decoder of Kafka's internal topics, JSON, UTF-8 without control
characters, an integer of 4 or 8 bytes, the header of Confluent's serializers (a zero byte and a schema id),
hex. Null, empty and tombstone are kinds of their own. Text over ``SHOWN_BYTES`` is cut; ``size`` is always
that of all bytes.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import Literal, get_args

from siltstone.base.errors import UsageError
from siltstone.commands.masking import MASK
from siltstone.log.coordinator_records import DECODERS as COORDINATOR_DECODERS
from siltstone.log.coordinator_records import Decoder, decode_record

Decoding = Literal["auto", "utf8", "json", "hex", "base64", "integer", "confluent"]
DECODINGS: tuple[Decoding, ...] = get_args(Decoding)
ShownKind = Literal[
    "null",
    "tombstone",
    "empty",
    "masked",
    "json",
    "utf8",
    "integer",
    "confluent",
    "internal",
    "hex",
    "base64",
]
SHOWN_BYTES = 8 << 10
"""The most bytes of a key, value or header that a page of records shows."""
JSON_BYTES = 1 << 20
"""A larger value is not parsed to find out whether it is JSON."""
DECODERS: dict[str, Decoder] = {**COORDINATOR_DECODERS, "__cluster_metadata": "metadata"}
"""The decoder of each internal topic."""
_INTEGER_SIZES = (1, 2, 4, 8)
_CONFLUENT_HEADER = 5
"""A zero byte, then the schema's id as an int32 (Confluent's wire format)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedBytes:
    """A key, value or header to show.

    ``text``: empty for null, tombstone and empty. ``size``: of all bytes; None where there are none, or they
    are masked. ``is_cut``: text of the first bytes only. ``schema_id``: of kind ``confluent``; the text is
    the payload in hex. ``note``: why the decoding that was asked for did not fit.
    """

    kind: ShownKind
    text: str = ""
    size: int | None = None
    is_cut: bool = False
    schema_id: int | None = None
    note: str | None = None

    def to_json(self) -> dict[str, object]:
        """The object in the REST API."""
        return {
            "kind": self.kind,
            "text": self.text,
            "size": self.size,
            "is_cut": self.is_cut,
            "schema_id": self.schema_id,
            "note": self.note,
        }


NULL = DecodedBytes(kind="null")
TOMBSTONE = DecodedBytes(kind="tombstone")
MASKED = DecodedBytes(kind="masked", text=MASK)


def check_decoding(name: str) -> Decoding:
    """The decoding of that name. Raises UsageError."""
    for known in DECODINGS:
        if known == name:
            return known
    raise UsageError(f"{name!r} is no decoding", advice=f"it is one of {', '.join(DECODINGS)}")


def decode(data: bytes | None, how: Decoding = "auto", shown_bytes: int = SHOWN_BYTES) -> DecodedBytes:
    """Decode bytes of a topic that is not internal. Never fails: bytes that are not as ``how`` says are shown
    as hex, with a note."""
    if data is None:
        return NULL
    if not data:
        return DecodedBytes(kind="empty", size=0)
    if how == "auto":
        return _decode_auto(data, shown_bytes)
    if how == "hex":
        return _hex(data, shown_bytes)
    if how == "base64":
        text = base64.b64encode(data[:shown_bytes]).decode()
        return DecodedBytes(kind="base64", text=text, size=len(data), is_cut=len(data) > shown_bytes)
    by_kind = {"utf8": _utf8, "json": _json, "integer": _integer, "confluent": _confluent}
    decoded = by_kind[how](data, shown_bytes)
    return decoded or _hex(data, shown_bytes, note=f"the bytes are not {how}")


def decode_internal(topic: str, key: bytes | None, value: bytes | None) -> tuple[DecodedBytes, DecodedBytes]:
    """Key and value of a record of an internal topic (``DECODERS``); what cannot be decoded as ``auto``."""
    row = decode_record(DECODERS[topic], key, value)
    parts = []
    for name, data in (("decodedKey", key), ("decodedValue", value)):
        decoded = row.get(name)
        if data is None or not isinstance(decoded, dict):
            parts.append(decode(data))
            continue
        text = json.dumps(decoded, ensure_ascii=False, default=str)
        shown, is_cut = text[:SHOWN_BYTES], len(text) > SHOWN_BYTES
        parts.append(DecodedBytes(kind="internal", text=shown, size=len(data), is_cut=is_cut))
    return parts[0], TOMBSTONE if value is None and key is not None else parts[1]


# The decoders: ``data`` is not empty; None if the bytes are not of the kind.


def _decode_auto(data: bytes, shown_bytes: int) -> DecodedBytes:
    """The first kind that fits, at last hex."""
    if data.lstrip()[:1] in (b"{", b"["):
        decoded = _json(data, shown_bytes)
        if decoded is not None:
            return decoded
    decoded = _utf8(data, shown_bytes)
    if decoded is not None and _is_printable(decoded.text):
        return decoded
    decoded = _integer(data, shown_bytes) if len(data) in (4, 8) else _confluent(data, shown_bytes)
    return decoded or _hex(data, shown_bytes)


def _is_printable(text: str) -> bool:
    """Has it no control characters but those of lines and tabs?"""
    return text.isprintable() or all(char.isprintable() or char in "\t\r\n" for char in text)


def _hex(data: bytes, shown_bytes: int, note: str | None = None) -> DecodedBytes:
    is_cut = len(data) > shown_bytes
    return DecodedBytes(kind="hex", text=data[:shown_bytes].hex(), size=len(data), is_cut=is_cut, note=note)


def _utf8(data: bytes, shown_bytes: int) -> DecodedBytes | None:
    is_cut = len(data) > shown_bytes
    shown = data[:shown_bytes]
    if is_cut:
        # The cut may be within a character, of which up to three bytes are left then. ``lead``: how far from
        # the end the last character begins, 0 if not within four bytes.
        lead = next((at for at in range(1, min(4, len(shown)) + 1) if shown[-at] & 0xC0 != 0x80), 0)
        if lead and shown[-lead] >= 0xC0 and _character_bytes(shown[-lead]) > lead:
            shown = shown[:-lead]
    try:
        text = shown.decode()
    except UnicodeDecodeError:
        return None
    return DecodedBytes(kind="utf8", text=text, size=len(data), is_cut=is_cut)


def _character_bytes(first: int) -> int:
    """Bytes of the UTF-8 character that begins with byte ``first`` (0xC0 or above)."""
    return 2 if first < 0xE0 else 3 if first < 0xF0 else 4


def _json(data: bytes, shown_bytes: int) -> DecodedBytes | None:
    """The JSON as it was written, not parsed and formatted anew, so that numbers keep their digits."""
    if len(data) > JSON_BYTES:
        return None
    try:
        json.loads(data)
        decoded = _utf8(data, shown_bytes)
    except (ValueError, RecursionError):
        return None
    if decoded is None:
        return None
    return DecodedBytes(kind="json", text=decoded.text, size=decoded.size, is_cut=decoded.is_cut)


def _integer(data: bytes, _: int) -> DecodedBytes | None:
    if len(data) not in _INTEGER_SIZES:
        return None
    text = str(int.from_bytes(data, "big", signed=True))
    return DecodedBytes(kind="integer", text=text, size=len(data))


def _confluent(data: bytes, shown_bytes: int) -> DecodedBytes | None:
    if len(data) < _CONFLUENT_HEADER or data[0]:
        return None
    payload = data[_CONFLUENT_HEADER:]
    return DecodedBytes(
        kind="confluent",
        text=payload[:shown_bytes].hex(),
        size=len(data),
        is_cut=len(payload) > shown_bytes,
        schema_id=int.from_bytes(data[1:_CONFLUENT_HEADER], "big"),
    )
