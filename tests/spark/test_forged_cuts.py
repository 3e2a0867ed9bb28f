"""An offset index that names a batch inside of a value: the log is cleaned all the same, segments whole."""

from __future__ import annotations

import itertools
import math
import struct
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from siltstone.compaction.engine import Engine, InProcessEngine
from siltstone.compaction.inplace.cleaner import RunLimits
from siltstone.compaction.report import CLEANED, LogResult
from siltstone.compaction.work import are_cut, cut_near, splits_by_task
from siltstone.log.segments import list_segments
from siltstone.spark.clean import SparkEngine
from tests.support.cleaning import logs
from tests.support.cleaning.lives import splits_of_any_size
from tests.support.cleaning.logs import Rec, batch, one
from tests.support.failures import assert_uncleanable
from tests.support.spark.ways import WAYS
from tests.support.thoroughness import few

pytestmark = pytest.mark.spark

INNER = one(14, "key-1", "the embedded one" * 9)


def write(path: Path, *, forged: bool, checkpoint: int | None = None) -> Path:
    """In the middle of the second segment a value holds a batch, which the index names if ``forged``."""
    first = [one(offset, f"key-{offset % 7}") for offset in range(9)]
    values = [one(offset, f"key-{offset % 3}", "value" * 9) for offset in range(9, 19)]
    outer = batch([Rec(offset=13, key=b"outer", value=b"x" * 50 + INNER + b"x" * 50)])
    second = [*values[:4], outer, *values[6:]]
    partition = logs.write_log(
        path, {0: first, 9: second, 19: [one(19, "z")]}, checkpoint=checkpoint, interval=100_000
    )
    if forged:
        position = b"".join(second).index(INNER)
        (partition / f"{9:020d}.index").write_bytes(struct.pack(">ii", 5, position))
        assert cut_near(list_segments(partition)[1], position) == (position, 14)
    return partition


def clean(path: Path, engine: Engine, limits: RunLimits | None = None) -> LogResult:
    limits = limits or RunLimits(whole_log_bytes=0)
    return logs.run(path, config={"segment.bytes": 300}, limits=limits, engine=lambda: engine)


@pytest.mark.parametrize(
    ("plan", "way"), few(itertools.product(("first pass", "second pass", "in waves"), WAYS), 0, 3, 4)
)
def test_a_cleaning_whose_ranges_are_cut_within_a_batch_is_done_again_without_cuts(
    tmp_path: Path, session: SparkSession, monkeypatch: pytest.MonkeyPatch, plan: str, way: int
) -> None:
    splits_of_any_size(monkeypatch)
    checkpoint = 9 if plan == "second pass" else None
    ours = write(tmp_path / "ours", forged=True, checkpoint=checkpoint)
    expected = write(tmp_path / "expected", forged=False, checkpoint=checkpoint)
    closed = list_segments(ours)[1 if checkpoint else 0 : 2]
    assert are_cut(splits_by_task(closed, 19, 3, may_cut=True))
    limits = logs.one_group_a_wave(tmp_path / "ours", {"segment.bytes": 300}) if plan == "in waves" else None
    engine = SparkEngine(
        session, tasks=3, min_clean_to_dirty_ratio=0 if checkpoint else 4, exchange_stage_bytes=way
    )
    result = clean(tmp_path / "ours", engine, limits)
    assert result.status == CLEANED, result.reason
    assert clean(tmp_path / "expected", InProcessEngine(min_clean_to_dirty_ratio=math.inf)).status == CLEANED
    assert logs.tree(ours) == logs.tree(expected)
    assert not (ours / ".siltstone").exists()


def test_a_log_that_is_damaged_besides_stays_uncleanable(
    tmp_path: Path, session: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    splits_of_any_size(monkeypatch)
    partition = write(tmp_path, forged=True)
    log = partition / f"{0:020d}.log"
    log.write_bytes(log.read_bytes()[:-1] + b"\x01")
    before = logs.tree(partition)
    result = clean(tmp_path, SparkEngine(session, tasks=3))
    assert_uncleanable(result, log)
    assert logs.tree(partition) == before
