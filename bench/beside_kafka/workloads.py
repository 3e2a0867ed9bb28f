"""What is produced: the shape of each workload, and its records from a seed.

Keys are numbers drawn uniformly from a key space of each partition, as ``k`` and digits. Values are text of
which four tenths are random, so that they compress about as event data does, or, where they are large, random
bytes. Every workload has a topic ``bench``, which is cleaned, a smaller ``warm-up`` of the same kind,
and where ``idle_partitions`` says so a topic ``idle``, which is as dirty but has no leave to be cleaned.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace

import numpy as np

MAIN, WARM_UP, IDLE = "bench", "warm-up", "idle"
WARM_UP_SHARE, WARM_UP_RECORDS_MAX = 10, 1_000_000
CHUNK_BYTES = 2 << 20
RANDOM_SHARE = 0.4
TEXTS = (b'{"state":"shipped","currency":"EUR","note":"', b'left at the door","country":"DE","lines":"4"}')
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One workload: ``base.records`` and ``keys`` (the key space) over all partitions, sizes in bytes.

    ``updates``: so many records follow on a log that Kafka's cleaner has cleaned; ``recent``: they take their
    keys from the newest tenth of the first part. ``batch_bytes``: of a batch before compression, 1 for one
    record a batch. ``default_goal``, ``tuned_goal``: times as fast as Kafka's cleaner we want to be.
    """

    name: str
    records: int
    keys: int
    key_size: int = 16
    value_size: int = 98
    partitions: int = 1
    idle_partitions: int = 0
    codec: str = "none"
    batch_bytes: int = 16384
    segment_bytes: int = 128 << 20
    updates: int = 0
    recent: bool = False
    default_goal: float | None = None
    tuned_goal: float | None = None

    def scaled(self, scale: float) -> Workload:
        """The same shape with so many times the records and keys; smaller ones have smaller segments."""
        if scale == 1:
            return self
        return replace(
            self,
            records=max(self.all_partitions, int(self.records * scale)),
            keys=max(self.partitions, int(self.keys * scale)),
            updates=int(self.updates * scale),
            segment_bytes=max(1 << 20, int(self.segment_bytes * min(1.0, scale))),
        )

    @property
    def all_partitions(self) -> int:
        """Partitions that are cleaned and those that are not."""
        return self.partitions + self.idle_partitions

    @property
    def topics(self) -> dict[str, int]:
        """Every topic's number of partitions."""
        counts = {MAIN: self.partitions, WARM_UP: 1, IDLE: self.idle_partitions}
        return {name: count for name, count in counts.items() if count}

    @property
    def warm_up(self) -> Workload:
        """What the ``warm-up`` topic holds."""
        records = min(max(1, self.records // WARM_UP_SHARE), WARM_UP_RECORDS_MAX)
        keys = max(1, int(self.keys * records / self.records))
        return replace(self, records=records, keys=keys, partitions=1, idle_partitions=0, updates=0)

    def shape(self) -> dict[str, object]:
        """What its records depend on."""
        goals = ("default_goal", "tuned_goal")
        return {name: value for name, value in asdict(self).items() if name not in goals}


NARROW = Workload(name="narrow", records=8_000_000, keys=1_000_000, default_goal=8, tuned_goal=5)
_SECOND = replace(NARROW, name="second-pass", records=12_000_000, keys=14_000_000, updates=400_000)
_SIZES_MB = (1, 4, 16, 64, 256)
BREAK_EVEN = tuple(
    replace(
        NARROW, name=f"{size}MB", records=size * 8064, keys=size * 1008, default_goal=None, tuned_goal=None
    )
    for size in _SIZES_MB
)
WORKLOADS = (
    NARROW,
    replace(NARROW, name="narrow-8", partitions=8),
    *(
        replace(NARROW, name=f"narrow-{codec}", codec=codec, default_goal=6, tuned_goal=5)
        for codec in ("lz4", "zstd", "gzip", "snappy")
    ),
    Workload(
        name="wide",
        records=30_000_000,
        keys=20_000_000,
        key_size=12,
        value_size=40,
        default_goal=20,
        tuned_goal=7,
    ),
    Workload(
        name="many",
        records=400 * 33_000,
        keys=200 * 4_000,
        partitions=200,
        idle_partitions=200,
        segment_bytes=2 << 20,
        default_goal=5,
        tuned_goal=5,
    ),
    Workload(
        name="large-values",
        records=100_000,
        keys=10_000,
        value_size=10_000,
        batch_bytes=65536,
        default_goal=3,
        tuned_goal=3,
    ),
    replace(_SECOND, default_goal=5, tuned_goal=5),
    replace(_SECOND, name="second-pass-recent", recent=True, default_goal=5, tuned_goal=5),
    Workload(
        name="tiny-batches",
        records=3_000_000,
        keys=400_000,
        value_size=50,
        batch_bytes=1,
        default_goal=3,
        tuned_goal=3,
    ),
)


def chosen(names: str) -> list[Workload]:
    """The workloads of these names, separated by commas; ``all``, and ``break-even`` for its sizes.

    Raises ValueError.
    """
    known = {workload.name: [workload] for workload in (*WORKLOADS, *BREAK_EVEN)}
    known |= {"all": list(WORKLOADS), "break-even": list(BREAK_EVEN)}
    unknown = [name for name in names.split(",") if name not in known]
    if unknown:
        raise ValueError(f"no workload {', '.join(unknown)}; there are {', '.join(known)}")
    return [workload for name in names.split(",") for workload in known[name]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Some records of one partition, in order."""

    partition: int
    keys: list[bytes]
    values: list[bytes]


class RecordMaker:
    """The records of one topic, and what of them a right cleaning leaves."""

    def __init__(self, shape: Workload, partitions: int, seed: int) -> None:
        self._shape, self._partitions = shape, partitions
        self._random = np.random.default_rng(seed)
        space = max(1, shape.keys // shape.partitions)
        self._is_used = np.zeros((partitions, space), np.bool_)
        self._recent: list[list[np.ndarray]] = [[] for _ in range(partitions)]

    def distinct(self, partition: int) -> int:
        """How many keys the records of a partition have had so far."""
        return int(np.count_nonzero(self._is_used[partition]))

    def first(self) -> Iterator[Chunk]:
        """All records but the updates, the partitions in turns."""
        records = self._shape.records // self._shape.all_partitions
        yield from self._chunks(records, recent=False)

    def updates(self) -> Iterator[Chunk]:
        """The updates that follow on them."""
        yield from self._chunks(self._shape.updates // self._shape.partitions, recent=self._shape.recent)

    def _chunks(self, records: int, *, recent: bool) -> Iterator[Chunk]:
        step = max(1, CHUNK_BYTES // (self._shape.key_size + self._shape.value_size))
        for start in range(0, records, step):
            for partition in range(self._partitions):
                count = min(step, records - start)
                numbers = self._numbers(partition, count, recent=recent)
                self._is_used[partition, numbers] = True
                if self._shape.recent:
                    self._recent[partition].append(numbers[max(0, records * 9 // 10 - start) :])
                yield Chunk(partition=partition, keys=self._keys(numbers), values=self._values(count))

    def _numbers(self, partition: int, count: int, *, recent: bool) -> np.ndarray:
        if recent:
            pool = np.concatenate(self._recent[partition])
            return pool[self._random.integers(0, len(pool), count)]
        return self._random.integers(0, self._is_used.shape[1], count)

    def _keys(self, numbers: np.ndarray) -> list[bytes]:
        size = self._shape.key_size
        digits = np.full((len(numbers), size), ord("k"), np.uint8)
        for digit in range(size - 1):
            digits[:, size - 1 - digit] = 48 + numbers // 10 ** min(digit, 18) % 10
        return _texts(digits)

    def _values(self, count: int) -> list[bytes]:
        size = self._shape.value_size
        if size >= 1000:
            block = self._random.bytes(count * size)
            return [block[start : start + size] for start in range(0, len(block), size)]
        text = (
            (TEXTS[0] + b"?" * int(size * RANDOM_SHARE) + TEXTS[1]) if size > 90 else b"?" * (size * 4 // 10)
        )
        row = np.frombuffer(text.ljust(size, b".")[:size], np.uint8)
        rows = np.tile(row, (count, 1))
        slots = np.flatnonzero(row == ord("?"))
        rows[:, slots] = _HEX[self._random.integers(0, 16, (count, len(slots)), np.uint8)]
        return _texts(rows)


def _texts(rows: np.ndarray) -> list[bytes]:
    return rows.view(f"S{rows.shape[1]}")[:, 0].tolist()
