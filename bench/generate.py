"""Generated log directories: what a broker leaves behind after writing one compacted topic.

::

    DIR/meta.properties  .kafka_cleanshutdown  *-checkpoint
    DIR/bench-0/partition.metadata  leader-epoch-checkpoint
    DIR/bench-0/BASE.log  .index  .timeindex  .snapshot     closed segments, then a small active one

A record takes 124 bytes: a key of 16 (``key-`` and 12 digits, drawn uniformly) and a value of 98, a
JSON-like text in which 40 bytes are random, so that it compresses about as event data does. Everything
comes from a seed. Columns are made with numpy a segment at a time and encoded by the product's kernels.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from siltstone.base.codec_table import CODEC_NAMES
from siltstone.base.records.build import NewBatchHeader, Spans, build_batch
from siltstone.base.records.layout import Bytes
from siltstone.base.records.scan import scan_batches
from siltstone.log.checkpoints import write_checkpoint
from siltstone.log.indexes import IndexBuilder
from siltstone.log.names import TopicPartition, segment_file
from siltstone.log.producers import write_snapshot

WHERE = TopicPartition("bench", 0)
SEGMENT_BYTES = 128 << 20
RECORD_MEMORY_BYTES = 124
BATCH_RECORDS = 131
"""Records of a batch of about 16 KB."""
KEYS = 1_000_000
START_MS = 1_700_000_000_000
RECORDS_PER_MS = 8
_KEY = b"key-000000000000"
_VALUE = (
    b'{"customer":"????????????????","state":"shipped","note":"????????????????????????","currency":"EUR"}'[
        :98
    ]
)
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
_INTERVAL, _INDEX_BYTES = 4096, 10 << 20
_CHUNK = 256 * BATCH_RECORDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    """What was made: sizes in bytes; ``plain_size`` is the closed segments' size without compression."""

    codec: str
    closed_size: int
    plain_size: int
    segments: int
    records: int
    cleaned_records: int
    distinct_keys: int

    @property
    def expected_records(self) -> int:
        """Records that a right cleaning leaves: one a key, and those of the active segment."""
        return self.distinct_keys + self.records - self.cleaned_records


def generate(folder: Path, size: int, codec: str, seed: int = 1, keys: int | None = None) -> Generated:
    """A log of about ``size`` bytes (uncompressed) under ``folder``/log; reused when it is whole.

    ``keys``: by default a million, of a smaller log one for eight records."""
    keys = min(KEYS, size // RECORD_MEMORY_BYTES // 8) if keys is None else keys
    facts = folder / "generated.json"
    if facts.exists():
        return Generated(**json.loads(facts.read_text()))
    shutil.rmtree(folder, ignore_errors=True)
    partition = folder / "log" / str(WHERE)
    partition.mkdir(parents=True)
    generated = _Maker(partition, codec, seed, keys).make(size // RECORD_MEMORY_BYTES)
    _write_directory(folder / "log", partition, generated.records)
    facts.write_text(json.dumps(asdict(generated)))
    return generated


class _Maker:
    """Writes one partition's segments."""

    def __init__(self, partition: Path, codec: str, seed: int, keys: int) -> None:
        self._partition = partition
        self._codec = codec
        self._random = np.random.default_rng(seed)
        self._is_used = np.zeros(keys, np.bool_)

    def make(self, records: int) -> Generated:
        """All segments; the last chunk of records is the active one's."""
        closed = max(1, records // _CHUNK) * _CHUNK
        size = plain_size = segments = offset = 0
        pending: list[Bytes] = []
        pending_size = 0
        base = 0
        for batch, encoded in self._batches(closed):
            if pending_size + len(batch) > SEGMENT_BYTES:
                self._close(base, pending)
                segments, base, pending, pending_size = segments + 1, offset, [], 0
            pending.append(batch)
            pending_size += len(batch)
            size, plain_size, offset = size + len(batch), plain_size + encoded, offset + BATCH_RECORDS
        self._close(base, pending)
        distinct = int(np.count_nonzero(self._is_used))
        tail = [batch for batch, _ in self._batches(10 * BATCH_RECORDS, offset)]
        self._close(offset, tail)
        return Generated(
            codec=self._codec,
            closed_size=size,
            plain_size=plain_size,
            segments=segments + 1,
            records=offset + 10 * BATCH_RECORDS,
            cleaned_records=offset,
            distinct_keys=distinct,
        )

    def _batches(self, records: int, offset: int = 0) -> Iterator[tuple[Bytes, int]]:
        """Batches and what each takes without compression."""
        for first in range(offset, offset + records, _CHUNK):
            count = min(_CHUNK, offset + records - first)
            keys, values = self._columns(count)
            for start in range(0, count, BATCH_RECORDS):
                yield self._batch(first, slice(start, start + BATCH_RECORDS), keys, values)

    def _batch(self, first: int, rows: slice, keys: Spans, values: Spans) -> tuple[Bytes, int]:
        offset = np.arange(first + rows.start, first + rows.stop, dtype=np.int64)
        shape = NewBatchHeader(base_offset=int(offset[0]), codec=CODEC_NAMES.index(self._codec))
        batch = build_batch(
            shape,
            offset=offset,
            timestamp=START_MS + offset // RECORDS_PER_MS,
            keys=Spans(data=keys.data, start=keys.start[rows], size=keys.size[rows]),
            values=Spans(data=values.data, start=values.start[rows], size=values.size[rows]),
        )
        return batch, BATCH_RECORDS * RECORD_MEMORY_BYTES

    def _columns(self, count: int) -> tuple[Spans, Spans]:
        numbers = self._random.integers(0, len(self._is_used), count)
        self._is_used[numbers] = True
        keys = np.tile(np.frombuffer(_KEY, np.uint8), (count, 1))
        for digit in range(12):
            keys[:, 15 - digit] = 48 + numbers // 10**digit % 10
        values = np.tile(np.frombuffer(_VALUE, np.uint8), (count, 1))
        slots = np.flatnonzero(values[0] == ord("?"))
        values[:, slots] = _HEX[self._random.integers(0, 16, (count, len(slots)), np.uint8)]
        return _rows(keys), _rows(values)

    def _close(self, base: int, batches: list[Bytes]) -> None:
        data = np.concatenate(batches)
        indexes = IndexBuilder(base, _INTERVAL, _INDEX_BYTES)
        indexes.add_batches(scan_batches(data).batches)
        for kind, content in indexes.finish().items():
            (self._partition / segment_file(base, kind)).write_bytes(content)
        with (self._partition / segment_file(base, "log")).open("wb") as file:
            file.write(data.data)
        if base:
            (self._partition / segment_file(base, "snapshot")).write_bytes(write_snapshot([]))


def _rows(table: Bytes) -> Spans:
    count, width = table.shape
    start = np.arange(count, dtype=np.int64) * width
    return Spans(data=table.reshape(-1), start=start, size=np.full(count, width, np.int32))


def _write_directory(directory: Path, partition: Path, end: int) -> None:
    """What is beside the segments, as a broker that was stopped cleanly leaves it."""
    (partition / "partition.metadata").write_text("version: 0\ntopic_id: c2lsdHN0b25lLWJlbmNoMQ\n")
    (partition / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")
    (partition / segment_file(end, "snapshot")).write_bytes(write_snapshot([]))
    properties = (
        "version=1\ncluster.id=c2lsdHN0b25lLWJlbmNoMA\nnode.id=1\ndirectory.id=c2lsdHN0b25lLWJlbmNoMg\n"
    )
    (directory / "meta.properties").write_text(properties)
    (directory / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":1}')
    for name, offset in (("recovery-point", end), ("log-start", 0), ("replication", end)):
        write_checkpoint(directory / f"{name}-offset-checkpoint", {WHERE: offset})
