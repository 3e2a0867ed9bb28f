"""Random logs cleaned by the product, whole and spread, and by the oracle: the same batches and records."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from siltstone.compaction.engine import InProcessEngine
from siltstone.compaction.inplace.cleaner import RunLimits
from siltstone.compaction.report import CLEANED, NOTHING_TO_DO, LogResult
from siltstone.log.indexes import IndexBuilder
from tests.support import in_memory
from tests.support.cleaning import judging, logs, oracle
from tests.support.cleaning.logs import DAY, NOW, RECORD_TIME, Rec
from tests.support.records import twin
from tests.support.records.arrays import scanned

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
        made: tuple[bytes, int] = draw(old_entries(base))
        return made
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
        mine: list[bytes] = []
        start = base
        for _ in range(draw(st.integers(0, 4))):
            data, base = draw(batches(base, number < old))
            mine.append(data)
            bounds.append(base)
        segments[start] = mine
        base += draw(st.sampled_from([0, 0, 3])) + (not mine)
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


def _rules(log: RandomLog) -> oracle.Cleaning:
    return oracle.Cleaning(
        now_ms=log.now_ms,
        checkpoint=log.first_dirty,
        high_watermark=log.high_watermark,
        delete_retention_ms=log.retention_ms,
        producer_expiration_ms=EXPIRATION,
        segment_bytes=log.segment_bytes,
    )


def _end(log: RandomLog) -> int:
    """First uncleanable: the active segment's base or that of the one which holds the high watermark."""
    bases = sorted(log.segments)
    return (
        max([base for base in bases[:-1] if base <= log.high_watermark] + bases[:1])
        if (log.high_watermark < bases[-1])
        else bases[-1]
    )


def _compare(log: RandomLog, before: Path, after: Path, result: LogResult) -> None:
    end = _end(log)
    assert result.first_dirty_offset is not None
    assert result.cleaned_end_offset == max(end, result.first_dirty_offset)
    judging.assert_cleaned(oracle.clean(before, _rules(log)), after, result)
    untouched = {base: data for base, data in logs.logs_of(before).items() if base >= end}
    assert untouched == {base: data for base, data in logs.logs_of(after).items() if base >= end}
    for base, data in logs.logs_of(after).items():
        if base < end:
            _indexes_fit(after, base, data, log.interval)


def _indexes_fit(partition: Path, base: int, data: bytes, interval: int) -> None:
    builder = IndexBuilder(base, interval, 10 << 20)
    builder.add_batches(scanned(data)[1])
    indexes = builder.finish()
    assert (partition / f"{base:020d}.index").read_bytes() == indexes["index"]
    assert (partition / f"{base:020d}.timeindex").read_bytes() == indexes["timeindex"]


def _write(path: Path, log: RandomLog) -> Path:
    return logs.write_log(
        path,
        log.segments,
        checkpoint=log.first_dirty,
        high_watermark=log.high_watermark,
        interval=log.interval,
        modified_ms={
            base: NOW - 10 * DAY + number * log.apart_ms for number, base in enumerate(sorted(log.segments))
        },
    )


def _engine(log: RandomLog) -> Callable[[], InProcessEngine]:
    return lambda: InProcessEngine(log.buckets, clean_share=4 * (log.buckets % 2))


def check(log: RandomLog) -> None:
    """Clean it in three ways; each result is the oracle's, and all are the same files."""
    with tempfile.TemporaryDirectory(dir=in_memory.FOLDER) as folder:
        root = Path(folder)
        before = _write(root / "before", log)
        trees = []
        for way in ("whole", "spread", "waves"):
            partition = _write(root / way, log)
            limits = {"whole": RunLimits(), "spread": RunLimits(whole_log_bytes=0)}.get(way)
            limits = limits or logs.one_group_a_wave(root / way, log.config, log.now_ms)
            result = logs.run(
                root / way, config=log.config, now_ms=log.now_ms, engine=_engine(log), limits=limits
            )
            assert result.status in (CLEANED, NOTHING_TO_DO), result
            if result.status == CLEANED:
                _compare(log, before, partition, result)
            trees.append(logs.tree(root / way))
        assert trees[0] == trees[1] == trees[2]


KEYLESS_TAIL = RandomLog(
    segments={0: [logs.one(0, "a"), logs.one(1, None)], 2: [logs.one(2, "b")]},
    first_dirty=None,
    high_watermark=1 << 60,
    retention_ms=0,
    segment_bytes=1 << 20,
    interval=4096,
    buckets=1,
)


@settings(max_examples=90, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@example(KEYLESS_TAIL)
@given(random_logs())
def test_random_logs_are_cleaned_as_by_hand(log: RandomLog) -> None:
    check(log)
