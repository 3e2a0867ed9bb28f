"""What a dump consists of: rows for output, findings for the reader, and the options that choose them.

A row is a dict whose ``type`` says what it describes (``file``, ``batch``, ``record``, ``offsetIndex``…);
the other names are those of Kafka's ``DumpLogSegments``. Values are JSON's, and bytes where the file has
bytes: who prints them decides between base64 and escaped text. A finding is something that is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from siltstone.errors import CorruptFileError
from siltstone.records.codecs import DEFAULT_LIMIT

Row = dict[str, Any]
Decoder = Literal["offsets", "transactions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something wrong in ``path`` at byte ``position``; ``reason`` says what."""

    path: str
    position: int
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: byte {self.position}: {self.reason}"


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


def finding_of(error: CorruptFileError) -> Finding:
    """The finding that an error stands for."""
    return Finding(path=error.path, position=error.position, reason=error.reason)
