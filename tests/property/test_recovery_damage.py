"""Any byte of any file of a partition directory flipped, cut, zeroed: recovered, or refused in words.

What is left is a prefix of the records, or what is missing is told: damage below the recovery point, and a
segment that ends where a batch ends, which a cleaned one may do. A refusal names the path, the position and
the reason. A second start finds nothing to do.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from siltstone.base.config import LogConfig
from siltstone.base.errors import CorruptFileError
from siltstone.log.recovery.partition import RecoveredPartition, recover_partition
from tests.support import in_memory
from tests.support.cleaning import logs
from tests.support.cleaning.logs import Rec, batch, tree, write_log
from tests.support.records import twin
from tests.support.thoroughness import examples

CONFIG = LogConfig(index_interval_bytes=100, segment_index_bytes=4096)
NOW = logs.RECORD_TIME + 1000
END = 26


def _records(base: int, count: int) -> list[Rec]:
    return [
        Rec(offset=base + i, key=b"key %d" % (base + i), value=b"v" * (base % 7 * 9)) for i in range(count)
    ]


def _batches(base: int, count: int) -> list[bytes]:
    batches = []
    for at in range(base, base + count, 2):
        shape = {"producer_id": 5, "producer_epoch": 0, "base_sequence": at} if at % 4 else {}
        batches.append(batch(_records(at, 2), **shape))
    return batches


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A partition of three segments with all kinds of files, as a clean stop leaves it."""
    partition = write_log(
        tmp_path_factory.mktemp("damage"),
        {0: _batches(0, 10), 10: _batches(10, 8), 18: _batches(18, 8)},
        interval=100,
    )
    (partition / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")
    (partition / "partition.metadata").write_text("version: 0\ntopic_id: c2lsdHN0b25lLXRlc3Rz-w\n")
    for _ in range(2):
        report = recover(partition, clean=False, point=0, check=False)
        assert (report.log_end_offset, report.damage, report.notes) == (END, (), ())
    assert not report.changed
    yield partition


def recover(partition: Path, *, clean: bool, point: int, check: bool) -> RecoveredPartition:
    return recover_partition(
        partition,
        had_clean_shutdown=clean,
        recovery_point=point,
        log_start_offset=0,
        config=CONFIG,
        now_ms=NOW,
        check=check,
    )


@dataclass(frozen=True, kw_only=True)
class Harm:
    """One damage to one file; positions are taken as shares of the file's size."""

    file: int
    kind: str
    share: float
    length: int
    bit: int

    def do(self, path: Path, noise: bytes) -> int:
        """Damage it; the first byte that changed."""
        data = bytearray(path.read_bytes())
        at = min(int(self.share * len(data)), max(len(data) - 1, 0))
        length = min(self.length, len(data) - at)
        if self.kind == "flip" and data:
            data[at] ^= 1 << self.bit
        elif self.kind == "cut":
            del data[at:]
        elif self.kind == "zero":
            data[at : at + length] = bytes(length)
        elif self.kind == "zero to the end":
            data[at:] = bytes(len(data) - at)
        elif self.kind == "zeros behind":
            data += bytes(self.length)
        elif self.kind == "noise":
            data[at : at + length] = noise[:length]
        elif self.kind == "noise behind":
            data += noise[: self.length]
        path.write_bytes(data)
        return at


KINDS = ["flip", "cut", "zero", "zero to the end", "zeros behind", "noise", "noise behind", "gone"]
HARMS = st.builds(
    Harm,
    file=st.integers(0, 50),
    kind=st.sampled_from(KINDS),
    share=st.floats(0, 1),
    length=st.integers(1, 300),
    bit=st.integers(0, 7),
)


def contents(partition: Path) -> list[tuple[bytes | None, bytes | None]]:
    """Keys and values of all batches with good checksums, in log order."""
    pairs = []
    for data in logs.logs_of(partition).values():
        for twins_batch in twin.decode_log(data):
            pairs += (
                [(record.key, record.value) for record in twins_batch.records] if twins_batch.valid else []
            )
    return pairs


MAGIC_ZEROED = Harm(file=4, kind="zero", share=0.6328125, length=1, bit=0)
"""A record batch that looks like a message of format v0, below what a clean start reads."""


@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@example(harm=MAGIC_ZEROED, noise=bytes(300), way=(True, END, True))
@given(
    harm=HARMS,
    noise=st.binary(min_size=300, max_size=300),
    way=st.sampled_from([(False, 0, False), (False, 12, True), (False, END, True), (True, END, True)]),
)
def test_a_damaged_directory_is_recovered_or_refused(
    original: Path, harm: Harm, noise: bytes, way: tuple[bool, int, bool]
) -> None:
    clean, point, check = way
    expected = contents(original)
    with tempfile.TemporaryDirectory(dir=in_memory.FOLDER) as folder:
        partition = Path(folder) / "topic-0"
        shutil.copytree(original, partition)
        names = sorted(tree(partition))
        path = partition / names[harm.file % len(names)]
        if harm.kind == "gone":
            path.unlink()
        else:
            harm.do(path, noise)
        try:
            report = recover(partition, clean=clean, point=point, check=check)
        except CorruptFileError as error:
            assert Path(error.path) == path and error.position <= 1 << 20 and error.reason
            assert path.name.endswith(".log")
            return
        remaining = contents(partition)
        is_reported = bool(report.damage or report.notes or report.removed_files)
        assert remaining == expected[: len(remaining)] or (is_reported and set(remaining) <= set(expected))
        assert len(remaining) == len(expected) or path.name.endswith(".log")
        before = tree(partition)
        again = recover(partition, clean=clean, point=report.log_end_offset, check=check)
        assert tree(partition) == before
        assert (again.log_end_offset, again.changed) == (report.log_end_offset, False)


@settings(max_examples=examples(60), deadline=None)
@given(
    harms=st.lists(HARMS, min_size=2, max_size=5),
    noise=st.binary(min_size=300, max_size=300),
    clean=st.booleans(),
)
def test_a_directory_with_several_damages_is_recovered_or_refused(
    original: Path, harms: list[Harm], noise: bytes, clean: bool
) -> None:
    with tempfile.TemporaryDirectory(dir=in_memory.FOLDER) as folder:
        partition = Path(folder) / "topic-0"
        shutil.copytree(original, partition)
        names = sorted(tree(partition))
        for harm in harms:
            path = partition / names[harm.file % len(names)]
            if harm.kind == "gone":
                path.unlink(missing_ok=True)
            elif path.exists():
                harm.do(path, noise)
        try:
            report = recover(partition, clean=clean, point=0, check=True)
        except CorruptFileError as error:
            assert error.path.startswith(str(partition)) and error.reason
            return
        before = tree(partition)
        again = recover(partition, clean=clean, point=report.log_end_offset, check=True)
        assert tree(partition) == before
        assert again.log_end_offset == report.log_end_offset
