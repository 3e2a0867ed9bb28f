"""What a dump consists of: rows for output, findings for the reader, and the options that choose them.

A row is a dict whose ``type`` says what it describes (``file``, ``batch``, ``record``, ``offsetIndex``…);
the other names are those of Kafka's ``DumpLogSegments``. Values are JSON's, and bytes where the file has
bytes: who prints them decides between base64 and escaped text. A finding is something that is wrong.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from siltstone.base.records.codecs import DEFAULT_LIMIT
from siltstone.log.indexes import Finding

Row = dict[str, Any]
Decoder = Literal["offsets", "transactions"]


Output = Iterator[Row | Finding]


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpOptions:
    """What to show; the names are the flags of Kafka's tool. ``max_bytes`` bounds what is read of a log,
    ``max_decompressed_message_bytes`` what one batch may decompress to."""

    print_data_log: bool = False
    deep_iteration: bool = False
    verify_index_only: bool = False
    index_sanity_check: bool = False
    max_bytes: int | None = None
    max_decompressed_message_bytes: int = DEFAULT_LIMIT
    decoder: Decoder | None = None

    @property
    def shows_data(self) -> bool:
        """Keys and values are printed: a decoder asks for them too."""
        return self.print_data_log or self.decoder is not None

    @property
    def shows_records(self) -> bool:
        """Records are printed, be it without keys and values."""
        return self.deep_iteration or self.shows_data


# Rows of a dump as lines of text, in the manner of Kafka's ``DumpLogSegments``.
#
# Nothing here trusts the bytes: what is not printable is escaped, so that a record cannot speak to the
# terminal. Backslashes stay as they are; whoever needs the exact bytes takes the JSON form.

_RECORD_SIZES = ("keySize", "valueSize")
_BATCH_START = (
    "baseOffset lastOffset count baseSequence lastSequence producerId producerEpoch "
    "partitionLeaderEpoch isTransactional isControl"
).split()
_BATCH_END = ("size", "magic", "compresscodec", "crc", "isvalid")
_PRODUCER_END = ("firstSequence", "lastSequence", "lastOffset", "offsetDelta", "timestamp")


def printable(content: bytes | str) -> str:
    """Text with every non-printable character escaped; bytes are read as UTF-8, bad ones as ``\\xNN``."""
    text = content.decode("utf-8", "backslashreplace") if isinstance(content, bytes) else content
    return text if text.isprintable() else text.translate(_ESCAPES)


class _Escapes(dict[int, str]):
    """What each character is printed as, by its number; filled as characters come up."""

    def __missing__(self, code: int) -> str:
        each = chr(code)
        shown = each if each.isprintable() else each.encode("unicode_escape").decode("ascii")
        self[code] = shown
        return shown


_ESCAPES = _Escapes()


def render(row: Row) -> str:
    """One row as text: a line, or two for the start of a log."""
    special = _SPECIAL.get(row["type"])
    return special(row) if special else _pairs(row, (name for name in row if name != "type"))


def _pairs(row: Row, names: Iterable[str]) -> str:
    return " ".join(f"{name}: {_plain(row[name])}" for name in names)


def _plain(content: Any) -> str:
    if isinstance(content, bool):
        return "true" if content else "false"
    return printable(content) if isinstance(content, bytes | str) else str(content)


def _optional(content: int | None) -> str:
    """As Java prints an OptionalLong."""
    return "OptionalLong.empty" if content is None else f"OptionalLong[{content}]"


def _file(row: Row) -> str:
    line = f"Dumping {printable(row['file'])}"
    return line if row.get("startOffset") is None else f"{line}\nLog starting offset: {row['startOffset']}"


def _batch(row: Row) -> str:
    where = f"position: {row['position']} {row['timestampType']}: {row['maxTimestamp']}"
    if row["magic"] < 2:
        return f"offset: {row['offset']} {where} {_pairs(row, _BATCH_END)}"
    horizon = f"deleteHorizonMs: {_optional(row['deleteHorizonMs'])}"
    return f"{_pairs(row, _BATCH_START)} {horizon} {where} {_pairs(row, _BATCH_END)}"


def _record(row: Row) -> str:
    parts = [
        f"| offset: {row['offset']} {row['timestampType']}: {row['timestamp']} {_pairs(row, _RECORD_SIZES)}"
    ]
    if "sequence" in row:
        names = ",".join(printable(name) for name in row["headerKeys"])
        parts.append(f"sequence: {row['sequence']} headerKeys: [{names}]")
    else:
        parts.append(_pairs(row, ("isValid", "crc")))
    if row.get("headers"):
        parts.append(f"headers: [{','.join(_header(each) for each in row['headers'])}]")
    if "controlType" in row:
        parts.append(_control(row))
    else:
        parts += [part for part in (_content(row, "key"), _content(row, "value")) if part]
    return " ".join(parts)


def _header(header: dict[str, Any]) -> str:
    value = header["value"]
    return f"{printable(header['key'])}={'null' if value is None else printable(value)}"


def _control(row: Row) -> str:
    if "coordinatorEpoch" in row:
        return f"endTxnMarker: {row['controlType']} coordinatorEpoch: {row['coordinatorEpoch']}"
    return f"controlType: {printable(row['controlType'])}"


def _content(row: Row, name: str) -> str:
    """``key: …`` or ``payload: …``, "" where the record has none or none is shown."""
    label = "payload" if name == "value" else name
    decoded = row.get("decodedKey" if name == "key" else "decodedValue")
    if decoded is not None:
        text = (
            decoded
            if isinstance(decoded, str)
            else json.dumps(decoded, ensure_ascii=False, separators=(",", ":"))
        )
        return f"{label}: {printable(text)}"
    content = row.get(name)
    return "" if content is None else f"{label}: {printable(content)}"


def _producer(row: Row) -> str:
    start = _pairs(row, ("producerId", "producerEpoch", "coordinatorEpoch"))
    line = f"{start} currentTxnFirstOffset: {_optional(row['currentTxnFirstOffset'])}"
    line = f"{line} lastTimestamp: {row['lastTimestamp']}"
    return f"{line} {_pairs(row, _PRODUCER_END)}" if "lastOffset" in row else line


def _sanity(row: Row) -> str:
    return f"{printable(row['file'])} passed sanity check."


def _property(row: Row) -> str:
    return f"{printable(row['name'])}: {printable(row['value'])}"


_SPECIAL: dict[str, Callable[[Row], str]] = {
    "file": _file,
    "batch": _batch,
    "record": _record,
    "producer": _producer,
    "sanity": _sanity,
    "property": _property,
}
