"""A flipped bit in a ``.txnindex``: the log stays as it is and the report says why, or it did not matter.

What a cleaning makes of the log as it was is the measure: whatever is cleaned has the same batches.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from siltstone.compaction.engine import InProcessEngine
from siltstone.compaction.inplace.cleaner import RunLimits
from siltstone.compaction.report import CLEANED, UNCLEANABLE, LogResult
from tests.support import golden_sets, in_memory
from tests.support.cleaning import logs
from tests.support.cleaning.transactional import a_log
from tests.support.thoroughness import few, share

SPREAD = RunLimits(whole_log_bytes=0)
PRODUCER_BYTES, FIRST_BYTES, LAST_BYTES = range(2, 10), range(10, 18), range(18, 26)


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A log directory that is cleaned again and again, with one thing wrong each time."""

    root: Path
    config: Mapping[str, object]
    now_ms: int = logs.NOW
    limits: RunLimits = RunLimits()  # noqa: RUF009  (frozen)
    buckets: int = 1

    @property
    def indexes(self) -> list[Path]:
        paths = sorted(self.root.glob("*/*.txnindex"))
        return [path for path in paths if path.stat().st_size]

    def clean(self, root: Path) -> LogResult:
        def engine() -> InProcessEngine:
            return InProcessEngine(self.buckets, min_clean_to_dirty_ratio=0 if self.buckets > 1 else 4)

        return logs.run(root, config=self.config, now_ms=self.now_ms, engine=engine, limits=self.limits)


def batches_in(root: Path) -> dict[str, bytes]:
    return {name: data for name, data in logs.tree(root).items() if name.endswith(".log")}


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=in_memory.FOLDER) as path:
        yield Path(path)


def linked(source: str, target: str) -> str:
    """A second name for a log, which a cleaning replaces and never writes to; a copy of anything else."""
    if source.endswith(".log"):
        os.link(source, target)
        return target
    return shutil.copy2(source, target)


def flip_bits(subject: Subject, folder: Path, bits: Callable[[Path], Iterator[int]]) -> Counter[str]:
    """Clean with each of the bits of each index flipped; how often each status came out."""
    clean = folder / "clean"
    shutil.copytree(subject.root, clean, copy_function=linked)
    assert subject.clean(clean).status == CLEANED
    expected, ended = batches_in(clean), Counter[str]()
    for index in subject.indexes:
        staged: Path | None = None
        for bit in bits(index):
            if staged is None:
                staged = folder / "staged"
                shutil.copytree(subject.root, staged, copy_function=linked)
                before = logs.tree(staged / index.parent.name)
            flipped = bytearray(index.read_bytes())
            flipped[bit // 8] ^= 1 << bit % 8
            (staged / index.relative_to(subject.root)).write_bytes(flipped)
            result = subject.clean(staged)
            ended[result.status] += 1
            if result.status == CLEANED:
                assert batches_in(staged) == expected, (index.name, bit)
                shutil.rmtree(staged)
                staged = None
                continue
            assert result.status == UNCLEANABLE and result.reason, (index.name, bit, result)
            after = logs.tree(staged / index.parent.name)
            after[index.name] = before[index.name]
            assert after == before, (index.name, bit)
        if staged is not None:
            shutil.rmtree(staged)
    return ended


def every_bit(index: Path) -> Iterator[int]:
    return iter(share(range(8 * index.stat().st_size), 11))


@pytest.mark.random
@pytest.mark.parametrize(
    ("limits", "buckets", "high_watermark"), few([(RunLimits(), 1, 20), (SPREAD, 3, 16)], 1)
)
def test_each_flipped_bit_of_a_small_logs_indexes_is_refused_or_harmless(
    folder: Path, limits: RunLimits, buckets: int, high_watermark: int
) -> None:
    """All of it in one group; groups that end amid transactions, as what is cleaned does."""
    root = a_log(folder / "log", high_watermark).parent
    config = {} if buckets == 1 else {"segment.bytes": 250}
    subject = Subject(root=root, config=config, limits=limits, buckets=buckets)
    ended = flip_bits(subject, folder, every_bit)
    assert ended.total() == sum(len(list(every_bit(index))) for index in subject.indexes)
    assert len(subject.indexes) == 5
    # What does not matter is the last stable offset, as long as it is possible.
    assert 0 < ended[CLEANED] < 5 * 8, ended


def some_bits(index: Path) -> Iterator[int]:
    """Other bits in each entry: the step has no factor in common with 34 bytes."""
    return iter(share(range(0, 8 * index.stat().st_size, 19), 5))


@pytest.mark.random
@pytest.mark.parametrize(("name", "round_number"), [("txn", 1), ("txn", 2)])
def test_flipped_bits_of_a_brokers_indexes_are_refused_or_harmless(
    golden: Path, folder: Path, name: str, round_number: int
) -> None:
    flip_golden(golden, name, round_number, folder, some_bits)


@pytest.mark.random
@pytest.mark.parametrize(
    "name", few([("txn_java",), ("txn_long_retention",), ("txn_lz4",), ("txn_open",)], 3)
)
def test_flipped_bits_of_indexes_left_by_a_cleaning_are_refused_or_harmless(
    cleaned: Path, folder: Path, name: str
) -> None:
    """Their second rounds: what an earlier cleaning has left."""
    flip_golden(cleaned / "transactions", name, 2, folder, some_bits)


def flip_golden(
    root: Path, name: str, number: int, folder: Path, bits: Callable[[Path], Iterator[int]]
) -> None:
    case = golden_sets.load_case(root, name)
    round_ = case.rounds[number - 1]
    assert round_.now_ms is not None
    staged = golden_sets.stage_round(case, round_, folder / "log")
    subject = Subject(root=staged, config=round_.command_config, now_ms=round_.now_ms)
    ended = flip_bits(subject, folder, bits)
    assert ended[UNCLEANABLE] > 0
