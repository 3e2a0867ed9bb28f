"""Random logs for Hypothesis, of all formats: how they are written, and how the oracle cleans them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hypothesis import strategies as st

from siltstone.compaction.engine import InProcessEngine
from tests.support.cleaning import logs, oracle
from tests.support.cleaning.logs import DAY, NOW, RECORD_TIME, Rec
from tests.support.records import twin

EXPIRATION = DAY
KEYS = [None, b"", *(b"key-%d" % i for i in range(7))]


@dataclass(frozen=True, kw_only=True)
class RandomLog:
    """A log, and how it is to be cleaned. ``apart_ms``: between the times of two segments."""

    segments: dict[int, list[bytes]]
    first_dirty: int | None
    high_watermark: int
    retention_ms: int
    segment_bytes: int
    interval: int
    buckets: int
    apart_ms: int = 1
    now_ms: int = NOW

    @property
    def config(self) -> dict[str, object]:
        return {
            "delete.retention.ms": self.retention_ms,
            "segment.bytes": self.segment_bytes,
            "index.interval.bytes": self.interval,
            "producer.id.expiration.ms": EXPIRATION,
        }

    @property
    def rules(self) -> oracle.Cleaning:
        """The oracle's."""
        return oracle.Cleaning(
            now_ms=self.now_ms,
            checkpoint=self.first_dirty,
            high_watermark=self.high_watermark,
            delete_retention_ms=self.retention_ms,
            producer_expiration_ms=EXPIRATION,
            segment_bytes=self.segment_bytes,
        )

    @property
    def engine(self) -> Callable[[], InProcessEngine]:
        """The engine that it is to be cleaned by."""
        return lambda: InProcessEngine(self.buckets, min_clean_to_dirty_ratio=4 * (self.buckets % 2))

    def write(self, path: Path) -> Path:
        """Write it into a new log directory; returns the partition's directory."""
        bases = enumerate(sorted(self.segments))
        return logs.write_log(
            path,
            self.segments,
            checkpoint=self.first_dirty,
            high_watermark=self.high_watermark,
            interval=self.interval,
            modified_ms={base: NOW - 10 * DAY + number * self.apart_ms for number, base in bases},
        )


@st.composite
def old_entries(draw: st.DrawFn, base: int) -> tuple[bytes, int]:
    """An entry of the formats v0 or v1 from ``base`` on, and the offset after it."""
    magic, codec = draw(st.sampled_from([(0, 0), (1, 0), (0, 1), (0, 3), (1, 1), (1, 2), (1, 3)]))
    append_time = magic == 1 and draw(st.sampled_from([False, False, True]))
    flags = twin.LOG_APPEND if append_time else 0
    offset, first, inner, latest = base, base if magic else 0, b"", 0
    for _ in range(draw(st.integers(1, 4)) if codec else 1):
        offset += draw(st.sampled_from([0, 0, 1])) if codec else 0
        key, value = draw(st.sampled_from(KEYS)), draw(st.sampled_from([None, b"", b"v"]))
        time = draw(st.integers(RECORD_TIME, RECORD_TIME + 300))
        latest = max(latest, time)
        if not codec:
            return twin.message(base, key, value, magic=magic, timestamp=time, attributes=flags), base + 1
        inner += twin.message(offset - first, key, value, magic=magic, timestamp=time)
        offset += 1
    data = twin.wrapper(offset - 1, inner, codec, magic=magic, timestamp=latest, attributes=flags)
    return data, offset


@st.composite
def batches(draw: st.DrawFn, base: int, old: bool = False) -> tuple[bytes, int]:
    """A batch from ``base`` on, and the offset after it."""
    if old and draw(st.booleans()):
        entries: tuple[bytes, int] = draw(old_entries(base))
        return entries
    count = draw(st.integers(1, 5))
    offset, records = base, []
    fresh = draw(st.booleans())
    for _ in range(count):
        offset += draw(st.sampled_from([0, 0, 0, 1, 4]))
        value = draw(st.sampled_from([None, b"", b"v", b"a longer value " * 3]))
        headers = draw(st.sampled_from([(), (), ((b"h", None), (b"", b"x"))]))
        time = draw(
            st.integers(NOW - DAY // 2, NOW) if fresh else st.integers(RECORD_TIME, RECORD_TIME + 300)
        )
        key = draw(st.sampled_from(KEYS))
        records.append(Rec(offset=offset, key=key, value=value, timestamp=time, headers=headers))
        offset += 1
    last = offset - 1 + draw(st.sampled_from([0, 0, 0, 2]))
    producer = draw(st.sampled_from([-1, -1, 7, 8]))
    known = (
        {} if producer < 0 else {"producer_id": producer, "producer_epoch": 3, "base_sequence": base % 1000}
    )
    data = logs.batch(
        records,
        base_offset=base,
        last_offset=last,
        leader_epoch=draw(st.integers(0, 2)),
        codec=draw(st.sampled_from([0, 0, 0, 1, 2, 3, 4])),
        log_append=draw(st.booleans()),
        delete_horizon_ms=draw(st.sampled_from([None, None, None, NOW - 1, NOW, NOW + 1])),
        **known,
    )
    return data, last + 1


@st.composite
def random_logs(draw: st.DrawFn) -> RandomLog:
    segments: dict[int, list[bytes]] = {}
    base = draw(st.sampled_from([0, 0, 41, 1 << 33]))
    old = draw(st.sampled_from([0, 0, 2, 6]))
    bounds = [base]
    for number in range(draw(st.integers(2, 6))):
        pieces: list[bytes] = []
        start = base
        for _ in range(draw(st.integers(0, 4))):
            data, base = draw(batches(base, number < old))
            pieces.append(data)
            bounds.append(base)
        segments[start] = pieces
        base += draw(st.sampled_from([0, 0, 3])) + (not pieces)
    return RandomLog(
        segments=segments,
        first_dirty=draw(st.none() | st.integers(min(bounds), max(bounds))),
        high_watermark=draw(st.sampled_from([1 << 60, 1 << 60, *bounds])),
        retention_ms=draw(st.sampled_from([0, 1000, DAY])),
        segment_bytes=draw(st.sampled_from([1, 300, 700, 1 << 20])),
        interval=draw(st.sampled_from([0, 100, 4096])),
        buckets=draw(st.integers(1, 5)),
        apart_ms=draw(st.sampled_from([0, 400, 1000, DAY // 2])),
    )
