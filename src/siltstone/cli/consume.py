"""``siltstone consume``: records of a topic, to its end or on and on, as kcat -C does."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from cyclopts import Parameter

from siltstone.base import interruption
from siltstone.base.errors import UsageError
from siltstone.base.records.layout import TIMESTAMP_TYPE_BIT
from siltstone.cli.output import NUMBER_OR_WORD, Json, TopicFlags, note, place_of
from siltstone.cli.record_format import RecordFormat, delimiter, envelope
from siltstone.commands.policies import reads_to_the_end
from siltstone.commands.records import ConsumedRecords, TopicConsumer, parse_range
from siltstone.log.dump.rows import printable
from siltstone.log.reading import Polled, records_of

_INTERVAL_SECONDS = 0.25
_SHARE_OF_WAITING = 4
"""Looking at the files again takes at most a fifth of the time."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ConsumeFlags(TopicFlags):
    r"""The flags of ``siltstone consume``.

    Parameters
    ----------
    partition
        Only this partition; may be given several times.
    offset
        Where to begin: start, end, an offset, -n (the last n), s@ms, or s@ms,e@ms (up to a time).
    exit_at_end
        End where the partitions end now; else go on as records arrive.
    format
        %t %p %o %k %s %T %h %K %S %R %% and \n \r \t \xNN; default: the value and a new line.
    key_delimiter
        Write the key too, with this behind it.
    delimiter
        What stands behind each record; default: a new line.
    null
        Write NULL for a key or value that is null.
    json_envelope
        A JSON object a line, as kcat -J has it; --json is the same.
    count
        End after so many records.
    isolation
        read_committed, or read_uncommitted for records of open and aborted transactions too.
    high_watermark
        "end": read what may not be replicated yet; needed only for a broker's topics.
    read_compacted
        The compacted view: the ledger that siltstone compact-topic wrote, then what came after it.
    quiet
        Do not tell of reached ends.
    """

    partition: Annotated[tuple[int, ...], Parameter(name=("--partition", "-p"))] = ()
    offset: Annotated[str, Parameter(name=("--offset", "-o")), NUMBER_OR_WORD] = "start"
    exit_at_end: Annotated[bool, Parameter(name=("--exit-at-end", "-e"))] = False
    format: Annotated[str | None, Parameter(name=("--format", "-f"), allow_leading_hyphen=True)] = None
    key_delimiter: Annotated[str | None, Parameter(name=("--key-delimiter", "-K"))] = None
    delimiter: Annotated[str | None, Parameter(name=("--delimiter", "-D"))] = None
    null: Annotated[bool, Parameter(name=("--null", "-Z"))] = False
    json_envelope: Annotated[bool, Parameter(name=("--json-envelope", "-J"))] = False
    count: Annotated[int | None, Parameter(name=("--count", "-c"))] = None
    isolation: str = "read_committed"
    high_watermark: str | None = None
    read_compacted: bool = False
    quiet: Annotated[bool, Parameter(name=("--quiet", "-q"))] = False

    def refuse_contradictions(self) -> None:
        """Raises UsageError for flags that do not go together."""
        reads_to_the_end(self.high_watermark)
        if self.count is not None and self.count < 0:
            raise UsageError(f"-c {self.count}: must not be negative")
        plain = (self.key_delimiter, self.delimiter)
        if self.format is not None and plain != (None, None):
            raise UsageError("-f goes without -K and -D: they are part of the format")

    def record_format(self) -> RecordFormat:
        """The format that the flags mean. Raises UsageError."""
        text = self.format
        if text is None:
            for part, flag in ((self.key_delimiter, "-K"), (self.delimiter, "-D")):
                delimiter("x" if part is None else part, flag)
            key = "" if self.key_delimiter is None else "%k" + self.key_delimiter.replace("%", "%%")
            text = f"{key}%s" + ("\\n" if self.delimiter is None else self.delimiter.replace("%", "%%"))
        clean = _for_a_terminal if sys.stdout.isatty() else bytes
        return RecordFormat(text, null=b"NULL" if self.null else b"", clean=clean)


def _for_a_terminal(raw: bytes) -> bytes:
    return printable(raw).encode()


def consume(*, flags: ConsumeFlags | None = None, json_: Json = False) -> int:
    """Write the records of a topic, as kcat -C does; go on as records arrive, or stop at the end with -e.

    Locks nothing and changes nothing: it works beside a live broker and on a backup. What was not yet
    replicated is not read, nor are records of open or aborted transactions.

    Parameters
    ----------
    json_
        A JSON object a line.
    """
    flags = flags or ConsumeFlags()
    place = place_of(flags.dir)
    topic = flags.the_topic()
    flags.refuse_contradictions()
    record_format = None if json_ or flags.json_envelope else flags.record_format()
    consuming = TopicConsumer(
        place,
        topic,
        partitions=frozenset(flags.partition),
        wanted=parse_range(flags.offset),
        isolation=flags.isolation,
        to_the_end=reads_to_the_end(flags.high_watermark),
        read_compacted=flags.read_compacted,
    )
    write = _writer(record_format) if record_format else _json_writer(consuming.broker_id)
    note(*consuming.notes, *consuming.damage)
    arriving = consuming.read_to_end() if flags.exit_at_end else consuming.follow(_Pause())
    left = flags.count
    try:
        while left != 0 and (arrived := next(arriving, None)) is not None:
            if arrived.polled is not None:
                left = write(arrived, left)
            elif not flags.quiet:
                note(f"reached the end of {arrived.where} at offset {arrived.offset}")
    except KeyboardInterrupt:
        if flags.exit_at_end:
            raise
        return interruption.current().status
    return 1 if consuming.damage else 0


class _Pause:
    """Waits between two looks at the files: longer where a look takes long."""

    def __init__(self) -> None:
        self._since = time.monotonic()

    def __call__(self) -> None:
        sys.stdout.flush()
        spent = time.monotonic() - self._since
        time.sleep(max(_INTERVAL_SECONDS, _SHARE_OF_WAITING * spent))
        self._since = time.monotonic()


Write = Callable[[ConsumedRecords, "int | None"], "int | None"]
"""Writes records, up to a number of them; how many are left to be written."""


def _writer(record_format: RecordFormat) -> Write:
    def write(arrived: ConsumedRecords, left: int | None) -> int | None:
        assert arrived.polled is not None
        rows = len(arrived.polled) if left is None else min(left, len(arrived.polled))
        some = records_of(arrived.polled, rows)
        sys.stdout.buffer.write(b"".join(record_format.render(arrived.where, each) for each in some))
        sys.stdout.buffer.flush()
        return None if left is None else left - rows

    return write


def _json_writer(broker: int) -> Write:
    def write(arrived: ConsumedRecords, left: int | None) -> int | None:
        polled = arrived.polled
        assert polled is not None
        rows = len(polled) if left is None else min(left, len(polled))
        for record, late in zip(records_of(polled, rows), _are_log_append(polled), strict=False):
            found = envelope(arrived.where, record, log_append=late, broker=broker)
            sys.stdout.buffer.write(json.dumps(found, ensure_ascii=False).encode() + b"\n")
        sys.stdout.buffer.flush()
        return None if left is None else left - rows

    return write


def _are_log_append(polled: Polled) -> list[bool]:
    """For each record: was its time given when it was appended?"""
    attributes = polled.batches["attributes"][polled.columns.batch]
    flags: list[bool] = ((attributes & TIMESTAMP_TYPE_BIT) != 0).tolist()
    return flags
