"""``siltstone produce``: records into a topic, from standard input or files, as kcat -P does."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, cast

from cyclopts import Parameter

from siltstone.base import files, interruption
from siltstone.base.errors import UsageError
from siltstone.cli.output import Json, TopicFlags, note, place_of, write_json
from siltstone.cli.record_format import delimiter
from siltstone.commands.records import TopicProducer
from siltstone.runtime.embedded import NewRecord

_CHUNK = 256 << 10


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ProduceFlags(TopicFlags):
    r"""The flags of ``siltstone produce``.

    Parameters
    ----------
    topic
        The topic; it has to be there.
    partition
        The partition; default: by the key's hash, as Kafka's clients do.
    key_delimiter
        What stands between key and value; without it records have no key. \t, \n, \xNN are understood.
    key
        The key of all records.
    delimiter
        What stands behind each record; default: a new line.
    header
        name=value, a header of all records; may be given several times.
    codec
        none, gzip, snappy, lz4 or zstd; default: what the topic's compression.type says.
    null
        An empty value or key is null: a tombstone.
    lines
        The files hold records with delimiters between them, as standard input does.
    count
        Stop after so many records.
    tee
        Write the input to standard output as well.
    server_properties
        The broker's own settings.
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
        found: list[tuple[str, bytes | None]] = []
        for text in self.header:
            name, equals, value = os.fsencode(text).partition(b"=")
            try:
                found.append((name.decode(), value if equals else None))
            except UnicodeDecodeError:
                name = b""
            if not name:
                raise UsageError(f"-H {text!r}: give name=value, the name in UTF-8")
        return found

    def record(self, raw: bytes, headers: Sequence[tuple[str, bytes | None]]) -> NewRecord:
        """What one piece of the input means."""
        key = None if self.key is None else os.fsencode(self.key)
        value: bytes | None = raw
        if self.key_delimiter is not None:
            before, found, after = raw.partition(delimiter(self.key_delimiter, "-K"))
            if found:
                key, value = before, after
        if self.null:
            key, value = key or None, value or None
        return NewRecord(key=key, value=value, headers=headers)


def produce(
    inputs: tuple[Path, ...] = (),
    /,
    *,
    flags: ProduceFlags | None = None,
    json_: Json = False,
) -> int:
    """Append records to a topic of a log directory: lines of standard input, or files, as kcat -P does.

    Locks the directory, as a broker does, until the input ends; everything is durable then. Records are
    appended as they arrive; standard error says which, also when something is refused in between.

    Parameters
    ----------
    inputs
        Files, one record each; with --lines, records with delimiters between them.
    json_
        Print one JSON document about what was appended.
    """
    flags = flags or ProduceFlags()
    place = place_of(flags.dir, flags.server_properties)
    topic = flags.the_topic()
    if flags.tee and json_:
        raise UsageError("--tee and --json: choose what standard output is for")
    if flags.count is not None and flags.count < 0:
        raise UsageError(f"-c {flags.count}: must not be negative")
    headers = flags.headers()
    delimiter("x" if flags.key_delimiter is None else flags.key_delimiter, "-K")
    delimiter(flags.delimiter, "-D")
    pieces = _limited(_pieces(inputs, flags), flags.count)
    with TopicProducer(place, topic, partition=flags.partition, compression=flags.codec) as producing:
        try:
            for some in pieces:
                producing.append([flags.record(raw, headers) for raw in some])
                if flags.tee:
                    _tee(some, flags)
        except KeyboardInterrupt:
            _say_appended(producing)
            note("interrupted; run again, it would append its input from the beginning")
            return interruption.current().status
        except BaseException:
            _say_appended(producing)
            raise
    if json_:
        write_json(_document(producing))
    else:
        _say_appended(producing)
    return 0


def _tee(some: Sequence[bytes], flags: ProduceFlags) -> None:
    sys.stdout.flush()
    end = delimiter(flags.delimiter, "-D")
    sys.stdout.buffer.write(b"".join(raw + end for raw in some))
    sys.stdout.buffer.flush()


def _say_appended(producing: TopicProducer) -> None:
    for _, each in sorted(producing.produced.items()):
        note(f"{each.where}: {each.records} records, offsets {each.first_offset} to {each.last_offset}")


def _document(producing: TopicProducer) -> dict[str, object]:
    found = [each for _, each in sorted(producing.produced.items())]
    partitions = [
        {
            "topic": each.where.topic,
            "partition": each.where.partition,
            "first_offset": each.first_offset,
            "last_offset": each.last_offset,
            "records": each.records,
        }
        for each in found
    ]
    return {"records": sum(each.records for each in found), "partitions": partitions}


def _pieces(inputs: Sequence[Path], flags: ProduceFlags) -> Iterator[list[bytes]]:
    """Records' bytes, as many at a time as are there. Raises UsageError, OSError."""
    end = delimiter(flags.delimiter, "-D")
    if not inputs:
        yield from _split(_chunks(), end)
    for path in inputs:
        content = files.read_input(path)
        yield from _split(iter([content]), end) if flags.lines else iter([[content]])


def _chunks() -> Iterator[bytes]:
    standard_input = cast(io.BufferedReader, sys.stdin.buffer)
    while chunk := standard_input.read1(_CHUNK):
        yield chunk


def _split(chunks: Iterator[bytes], end: bytes) -> Iterator[list[bytes]]:
    """Whole records of each chunk; one that has begun waits for its end, the last one needs none."""
    begun: list[bytes] = []
    for chunk in chunks:
        if end not in chunk and len(end) == 1:
            begun.append(chunk)
            continue
        *whole, rest = (b"".join(begun) + chunk).split(end)
        begun = [rest]
        if whole:
            yield whole
    last = b"".join(begun)
    if last:
        yield [last]


def _limited(pieces: Iterator[list[bytes]], count: int | None) -> Iterator[list[bytes]]:
    if count is None:
        yield from pieces
        return
    for some in pieces if count else ():
        yield some[:count]
        count -= len(some[:count])
        if not count:
            return
