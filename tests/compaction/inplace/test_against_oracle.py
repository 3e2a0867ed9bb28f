"""Random logs cleaned by the product, whole and spread, and by the oracle: the same batches and records."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import HealthCheck, example, given, settings

from siltstone.compaction.inplace.cleaner import RunLimits
from siltstone.compaction.report import CLEANED, NOTHING_TO_DO, LogResult
from siltstone.log.indexes import IndexBuilder
from tests.support import in_memory
from tests.support.cleaning import judging, logs, oracle
from tests.support.cleaning.random_logs import RandomLog, random_logs
from tests.support.records.arrays import scanned
from tests.support.thoroughness import examples


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
    judging.assert_cleaned(oracle.clean(before, log.rules), after, result)
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


def check(log: RandomLog) -> None:
    """Clean it in three ways; each result is the oracle's, and all are the same files."""
    with tempfile.TemporaryDirectory(dir=in_memory.FOLDER) as folder:
        root = Path(folder)
        before = log.write(root / "before")
        trees = []
        for way in ("whole", "spread", "waves"):
            partition = log.write(root / way)
            limits = {"whole": RunLimits(), "spread": RunLimits(whole_log_bytes=0)}.get(way)
            limits = limits or logs.one_group_a_wave(root / way, log.config, log.now_ms)
            result = logs.run(
                root / way, config=log.config, now_ms=log.now_ms, engine=log.engine, limits=limits
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


@settings(max_examples=examples(90), deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@example(KEYLESS_TAIL)
@given(random_logs())
def test_random_logs_are_cleaned_as_by_the_oracle(log: RandomLog) -> None:
    check(log)
