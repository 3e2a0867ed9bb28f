r"""``siltstone consume`` writes the records of a topic, ``siltstone produce`` appends them (kcat -C and -P).

Records are written in kcat's format strings, or as its JSON envelopes::

    %t topic   %p partition   %o offset   %k key   %s value   %h headers (a=b,c=d)
    %T time in ms   %K, %S sizes of key and value (-1: null)   %R the value's size in 4 bytes   %% a percent
    \n \r \t \\ \xNN
"""

from __future__ import annotations

import base64
import contextlib
import io
import math
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

from cyclopts import Parameter

from siltstone.base import files, interruption
from siltstone.base.errors import UsageError
from siltstone.cli import output
from siltstone.commands.explain_page import counted, size_text
from siltstone.commands.policies import high_watermark_is_end
from siltstone.commands.records import ConsumedRecords, TopicConsumer, TopicProducer, parse_range
from siltstone.log.dump import printable
from siltstone.log.names import TopicPartition
from siltstone.log.reading import Record
from siltstone.runtime.producing import NewRecord

if TYPE_CHECKING:
    from siltstone.commands.remote import RemoteBroker
    from siltstone.commands.remote_records import RemoteConsumer, RemoteProducer

_INTERVAL_SECONDS, _INTERVAL_SECONDS_MAX = 0.25, 5.0
"""The least and the most time between two checks of the files."""
_WAITING_FACTOR = 4
"""A wait is this many times as long as the reading before it, within these bounds, so that reading takes at
most a fifth of the time."""
_INPUT_BYTES = 256 << 10
"""How much of the input is read at a time."""
_FILE_RECORD_BYTES_MAX = 1 << 30
"""The largest file that is one record."""
_ESCAPE = re.compile(rb"\\(?:x([0-9a-fA-F]{2})|(.)|$)", re.DOTALL)
_ESCAPES = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"\\": b"\\", b"0": b"\0"}
_TOKEN = re.compile(r"%(.|$)", re.DOTALL)

RecordWriter = Callable[[TopicPartition, Record], bytes]
"""Makes the bytes that are written for a record, or for a part of it."""


def delimiter(text: str, flag: str) -> bytes:
    r"""The bytes that a delimiter means, ``\n``, ``\t`` and ``\xNN`` resolved. Raises UsageError."""
    resolved = unescape(text, flag)
    output.refuse_if(not resolved, f"{flag} '': is empty", "pass at least one character")
    return resolved


def unescape(text: str, flag: str) -> bytes:
    """``text`` as bytes, escapes resolved. Raises UsageError for an unknown one."""

    def resolve(match: re.Match[bytes]) -> bytes:
        if match[1] is not None:
            return bytes.fromhex(match[1].decode())
        resolved = _ESCAPES.get(match[2] or b"")
        if resolved is None:
            reason = f"{flag} {text!r}: unknown escape {match[0].decode(errors='replace')}"
            raise UsageError(reason, advice=r"pass \n \r \t \\ or \xNN")
        return resolved

    return _ESCAPE.sub(resolve, text.encode("utf-8", "surrogateescape"))


def record_format(
    text: str, *, null: bytes = b"", escape: Callable[[bytes], bytes] = lambda raw: raw
) -> RecordWriter:
    """A function that writes records in the format ``text``. Raises UsageError for an unknown token.

    ``null`` is written for keys and values that are null. ``escape`` is applied to keys, values and headers
    that go to a terminal, which must not obey the bytes of a record.
    """

    def content(raw: bytes | None) -> bytes:
        return null if raw is None else escape(raw)

    tokens: dict[str, bytes | RecordWriter] = {
        "%": b"%",
        "t": lambda topic_partition, record: topic_partition.topic.encode(),
        "p": lambda topic_partition, record: b"%d" % topic_partition.partition,
        "o": lambda topic_partition, record: b"%d" % record.offset,
        "k": lambda topic_partition, record: content(record.key),
        "s": lambda topic_partition, record: content(record.value),
        "K": lambda topic_partition, record: b"%d" % _size(record.key),
        "S": lambda topic_partition, record: b"%d" % _size(record.value),
        "R": lambda topic_partition, record: _size(record.value).to_bytes(4, "big", signed=True),
        "T": lambda topic_partition, record: b"%d" % record.timestamp,
        "h": lambda topic_partition, record: b",".join(
            escape(name) + b"=" + (b"NULL" if value is None else escape(value))
            for name, value in record.headers
        ),
    }
    parts: list[bytes | RecordWriter] = []
    for number, part in enumerate(_TOKEN.split(text)):
        is_token = number % 2 == 1
        advice = f"pass {' '.join(f'%{name}' for name in tokens)}"
        output.refuse_if(is_token and part not in tokens, f"-f {text!r}: unknown token %{part}", advice)
        parts.append(tokens[part] if is_token else unescape(part, "-f"))
    return lambda topic_partition, record: b"".join(
        part if isinstance(part, bytes) else part(topic_partition, record) for part in parts
    )


def _size(raw: bytes | None) -> int:
    return -1 if raw is None else len(raw)


def envelope(
    topic_partition: TopicPartition, record: Record, *, log_append: bool, broker: int
) -> dict[str, object]:
    """A record as ``kcat -J`` prints it; bytes that are not UTF-8 are in ``key_base64``, ``payload_base64``.

    ``headers``: names and values in turn; bytes that are not UTF-8 are escaped.
    """
    document: dict[str, object] = {
        "topic": topic_partition.topic,
        "partition": topic_partition.partition,
        "offset": record.offset,
        "tstype": "unknown" if record.timestamp < 0 else "logappend" if log_append else "create",
        "ts": record.timestamp,
        "broker": broker,
    }
    if record.headers:
        parts = (part for pair in record.headers for part in pair)
        document["headers"] = [
            None if part is None else part.decode("utf-8", "backslashreplace") for part in parts
        ]
    for name, raw in (("key", record.key), ("payload", record.value)):
        try:
            document[name] = None if raw is None else raw.decode("utf-8")
        except UnicodeDecodeError:
            assert raw is not None
            document[f"{name}_base64"] = base64.b64encode(raw).decode("ascii")
    return document


@dataclass(frozen=True, kw_only=True)
class ConsumeFlags(output.TopicFlags, output.ServerFlags):
    r"""The flags of ``siltstone consume``.

    Parameters
    ----------
    partition
        Only this partition; repeat it for more.
    offset
        The first offset: start, end, an offset, -n (the last n), s@ms, or s@ms,e@ms (up to a time).
    exit_at_end
        Exit at the current end of the partitions; default: wait for new records.
    format
        %t %p %o %k %s %T %h %K %S %R %% and \n \r \t \xNN; default: the value and a new line.
    key_delimiter
        Also write the key, followed by this.
    delimiter
        Written after each record; default: a new line.
    null
        Write NULL for null keys and values.
    json_envelope
        One JSON object a line, as kcat -J; --json is the same.
    count
        Exit after this many records.
    isolation
        read_committed, or read_uncommitted for records of open and aborted transactions too.
    high_watermark
        "end": read to the log's end. Needed for directories of a broker without a high watermark on the disk;
        not with --bootstrap-server, where the broker says how far.
    read_compacted
        The compacted view: the ledger that siltstone compact-topic wrote, then the records after it.
    quiet
        Do not report reached ends.
    """

    partition: Annotated[tuple[int, ...], Parameter(name=("--partition", "-p"))] = ()
    offset: Annotated[str, Parameter(name=("--offset", "-o")), output.NUMBER_OR_WORD] = "start"
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
        refuse_negative_count(self.count)
        has_delimiter = (self.key_delimiter, self.delimiter) != (None, None)
        output.refuse_if(
            self.format is not None and has_delimiter,
            "-f excludes -K and -D",
            "write the delimiters into the format",
        )

    def format_of_records(self) -> RecordWriter:
        """The format that the flags mean. Raises UsageError."""
        text = self.format
        if text is None:
            # The delimiters become a part of the format. This only refuses wrong ones, with their own flags.
            for part, flag in ((self.key_delimiter, "-K"), (self.delimiter, "-D")):
                if part is not None:
                    delimiter(part, flag)
            key = "" if self.key_delimiter is None else "%k" + self.key_delimiter.replace("%", "%%")
            text = f"{key}%s" + ("\\n" if self.delimiter is None else self.delimiter.replace("%", "%%"))
        escape = (lambda raw: printable(raw).encode()) if sys.stdout.isatty() else bytes
        return record_format(text, null=b"NULL" if self.null else b"", escape=escape)


def refuse_negative_count(count: int | None) -> None:
    """Raises UsageError for a ``--count`` below 0."""
    output.refuse_if(count is not None and count < 0, f"-c {count}: is below 0", "pass 0 or more")


def consume(
    directories: output.Directories = (),
    /,
    *,
    flags: ConsumeFlags = ConsumeFlags(),
    json_: output.Json = False,
) -> int:
    """Write the records of a topic, as kcat -C does; wait for new ones, or exit at the end with -e.

    Locks nothing and changes nothing: it works beside a live broker and on a backup. Records that are not yet
    replicated are not read, nor are those of open or aborted transactions.

    Parameters
    ----------
    directories
        The log directories, also as --dir.
    json_
        One JSON object a line.
    """
    flags = flags.at(directories)
    flags.refuse_contradictions()
    render = None if json_ or flags.json_envelope else flags.format_of_records()
    with contextlib.ExitStack() as stack:
        return _consume(flags, _consumer(flags, stack), render)


def _consumer(flags: ConsumeFlags, stack: contextlib.ExitStack) -> TopicConsumer | RemoteConsumer:
    """The reader of the directories, or of the broker."""
    broker, topic, partitions = flags.remote(), flags.required_topic(), frozenset(flags.partition)
    if broker is None:
        return TopicConsumer(
            flags.broker_directories(),
            topic,
            partitions=partitions,
            offset_range=parse_range(flags.offset),
            isolation=flags.isolation,
            beyond_high_watermark=high_watermark_is_end(flags.high_watermark),
            read_compacted=flags.read_compacted,
        )
    from siltstone.commands.remote_records import RemoteConsumer

    flags.refuse_at_a_broker("read_compacted", "high_watermark")
    offset_range = parse_range(flags.offset)
    return stack.enter_context(
        RemoteConsumer(
            broker, topic, partitions=partitions, offset_range=offset_range, isolation=flags.isolation
        )
    )


def _consume(
    flags: ConsumeFlags, consumer: TopicConsumer | RemoteConsumer, render: RecordWriter | None
) -> int:
    """Write the records as they arrive; returns the exit status. ``render``: None writes envelopes."""
    output.note(*consumer.notes, *consumer.damage)
    arriving = consumer.read_to_end() if flags.exit_at_end else consumer.follow(Pause())
    remaining = math.inf if flags.count is None else flags.count
    try:
        while remaining and (arrived := next(arriving, None)) is not None:
            if not arrived.is_end:
                count = int(min(remaining, len(arrived)))
                _write(arrived, count, render, consumer.broker_id)
                remaining -= count
            elif not flags.quiet:
                output.note(f"reached the end of {arrived.topic_partition} at offset {arrived.offset}")
    except KeyboardInterrupt:
        if flags.exit_at_end:
            raise
        return interruption.current().status
    return 1 if consumer.damage else 0


class Pause:
    """Waits before the files are read again: longer where reading them takes long, at most
    ``_INTERVAL_SECONDS_MAX`` (the first reading takes as long as all old records)."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._clock, self._sleep = clock, sleep
        self._since = clock()

    def __call__(self) -> None:
        sys.stdout.flush()
        spent = self._clock() - self._since
        self._sleep(min(max(_INTERVAL_SECONDS, _WAITING_FACTOR * spent), _INTERVAL_SECONDS_MAX))
        self._since = self._clock()


def _write(arrived: ConsumedRecords, count: int, render: RecordWriter | None, broker: int) -> None:
    """Write the first ``count`` records, in the format, or as envelopes where there is none."""
    records, log_append = arrived.first(count)
    if render is not None:
        lines = [render(arrived.topic_partition, record) for record in records]
    else:
        envelopes = (
            envelope(arrived.topic_partition, record, log_append=is_log_append, broker=broker)
            for record, is_log_append in zip(records, log_append, strict=True)
        )
        lines = [output.json_text(document).encode() + b"\n" for document in envelopes]
    sys.stdout.buffer.write(b"".join(lines))
    sys.stdout.buffer.flush()


@dataclass(frozen=True, kw_only=True)
class ProduceFlags(output.TopicFlags, output.ServerFlags):
    r"""The flags of ``siltstone produce``.

    Parameters
    ----------
    topic
        The topic, which must exist.
    partition
        The partition; default: by the key's hash, as Kafka's clients do.
    key_delimiter
        Separates key and value; without it records have no key. \t, \n and \xNN are resolved.
    key
        The key of all records.
    delimiter
        Ends each record; default: a new line.
    header
        name=value, a header of all records; repeat it for more.
    codec
        The codec that compresses the batches; default: the topic's compression.type.
    null
        Empty keys and values are null; a record with a null value is a tombstone.
    lines
        The files contain records separated by the delimiter, as standard input does.
    count
        Stop after this many records.
    tee
        Write the input to standard output as well.
    server_properties
        The broker's server.properties.
    """

    partition: Annotated[int | None, Parameter(name=("--partition", "-p"))] = None
    key_delimiter: Annotated[str | None, Parameter(name=("--key-delimiter", "-K"))] = None
    key: Annotated[str | None, Parameter(name=("--key", "-k"))] = None
    delimiter: Annotated[str, Parameter(name=("--delimiter", "-D"))] = "\\n"
    header: Annotated[tuple[str, ...], Parameter(name=("--header", "-H"))] = ()
    codec: Annotated[str | None, Parameter(name=("--codec", "-z"))] = None
    null: Annotated[bool, Parameter(name=("--null", "-Z"))] = False
    lines: Annotated[bool, Parameter(name=("--lines", "-l"))] = False
    count: Annotated[int | None, Parameter(name=("--count", "-c"))] = None
    tee: Annotated[bool, Parameter(name=("--tee", "-T"))] = False
    server_properties: Path | None = None

    def headers(self) -> list[tuple[str, bytes | None]]:
        """The headers of every record. Raises UsageError."""
        headers: list[tuple[str, bytes | None]] = []
        for text in self.header:
            name, equals, value = os.fsencode(text).partition(b"=")
            try:
                headers.append((name.decode(), value if equals else None))
            except UnicodeDecodeError:
                name = b""
            if not name:
                raise UsageError(f"-H {text!r}: has no name", advice="pass name=value, the name in UTF-8")
        return headers

    def record(self, raw: bytes, headers: Sequence[tuple[str, bytes | None]]) -> NewRecord:
        """The record that the bytes between two delimiters of the input mean."""
        key = None if self.key is None else os.fsencode(self.key)
        value: bytes | None = raw
        if self.key_delimiter is not None:
            before, separator, after = raw.partition(delimiter(self.key_delimiter, "-K"))
            if separator:
                key, value = before, after
        if self.null:
            key, value = key or None, value or None
        return NewRecord(key=key, value=value, headers=headers)


def produce(
    inputs: tuple[Path, ...] = (),
    /,
    *,
    flags: ProduceFlags = ProduceFlags(),
    json_: output.Json = False,
) -> int:
    """Append records to a topic of a log directory: lines of standard input, or files, as kcat -P does.

    Locks the directory, as a broker does, until the input ends; everything is durable then. Records are
    appended as they arrive; standard error shows their offsets, also if a later record is refused.

    Parameters
    ----------
    inputs
        Files, one record each; with --lines, records separated by the delimiter.
    json_
        Print one JSON document with partitions, offsets and counts.
    """
    broker, topic = flags.remote(), flags.required_topic()
    reason = "--tee and --json both write to standard output"
    output.refuse_if(flags.tee and json_, reason, "pass one of them")
    refuse_negative_count(flags.count)
    headers = flags.headers()
    # Wrong delimiters are refused before the directory is locked.
    if flags.key_delimiter is not None:
        delimiter(flags.key_delimiter, "-K")
    delimiter(flags.delimiter, "-D")
    batches = _limited(_input_records(inputs, flags), flags.count)
    with _producer(flags, broker, topic) as producer:
        try:
            for raw_records in batches:
                producer.append([flags.record(raw, headers) for raw in raw_records])
                if flags.tee:
                    _tee(raw_records, flags)
        except KeyboardInterrupt:
            _note_appended(producer)
            output.note("interrupted; the same command would append its input from the beginning")
            return interruption.current().status
        except BaseException:
            _note_appended(producer)
            raise
    if json_:
        output.write_json(_document(producer))
    else:
        _note_appended(producer)
    return 0


def _producer(flags: ProduceFlags, broker: RemoteBroker | None, topic: str) -> TopicProducer | RemoteProducer:
    """The topic, open in the directories, or at the broker."""
    if broker is None:
        directories = flags.broker_directories(flags.server_properties)
        return TopicProducer(directories, topic, partition=flags.partition, compression=flags.codec)
    from siltstone.commands.remote_records import RemoteProducer

    flags.refuse_at_a_broker("server_properties")
    return RemoteProducer(broker, topic, partition=flags.partition, compression=flags.codec)


def _tee(raw_records: Sequence[bytes], flags: ProduceFlags) -> None:
    """Write input records to standard output, each with its delimiter."""
    sys.stdout.flush()
    end = delimiter(flags.delimiter, "-D")
    sys.stdout.buffer.write(b"".join(raw + end for raw in raw_records))
    sys.stdout.buffer.flush()


def _note_appended(producer: TopicProducer | RemoteProducer) -> None:
    for _, produced in sorted(producer.produced.items()):
        offsets = f"{produced.first_offset} to {produced.last_offset}"
        output.note(f"{produced.topic_partition}: {counted(produced.records, 'record')}, offsets {offsets}")


def _document(producer: TopicProducer | RemoteProducer) -> dict[str, object]:
    documents = [output.plain(produced) for _, produced in sorted(producer.produced.items())]
    partitions = [{**document.pop("topic_partition"), **document} for document in documents]
    return {"records": sum(document["records"] for document in documents), "partitions": partitions}


def _input_records(inputs: Sequence[Path], flags: ProduceFlags) -> Iterator[list[bytes]]:
    """The bytes of each record, as many records at a time as have arrived. Raises UsageError, OSError."""
    end = delimiter(flags.delimiter, "-D")
    if not inputs:
        standard_input = cast(io.BufferedReader, sys.stdin.buffer)
        yield from _split(iter(lambda: standard_input.read1(_INPUT_BYTES), b""), end)
    for path in inputs:
        if flags.lines:
            yield from _split(files.input_parts(path, _INPUT_BYTES), end)
            continue
        content = files.read_input(path, _FILE_RECORD_BYTES_MAX + 1)
        reason = f"{path}: is over {size_text(_FILE_RECORD_BYTES_MAX)}, which is too large for one record"
        advice = "pass --lines if the file has records separated by the delimiter"
        output.refuse_if(len(content) > _FILE_RECORD_BYTES_MAX, reason, advice)
        yield [content]


def _split(chunks: Iterator[bytes], end: bytes) -> Iterator[list[bytes]]:
    """The records that each chunk completes. The last record of all may lack its delimiter ``end``."""
    incomplete: list[bytes] = []
    for chunk in chunks:
        # Chunks are joined only when a record ends: else a record of many chunks would be copied with each of
        # them. (A delimiter of several bytes may be split between two chunks, so only the join shows it.)
        if end not in chunk and len(end) == 1:
            incomplete.append(chunk)
            continue
        *whole, rest = (b"".join(incomplete) + chunk).split(end)
        incomplete = [rest]
        if whole:
            yield whole
    last = b"".join(incomplete)
    if last:
        yield [last]


def _limited(batches: Iterator[list[bytes]], count: int | None) -> Iterator[list[bytes]]:
    """The batches up to the record ``count`` in all; None: all of them."""
    if count is None:
        yield from batches
        return
    for raw_records in batches if count else ():
        yield raw_records[:count]
        count -= len(raw_records[:count])
        if not count:
            return
