"""Whatever log is cleaned, the verifier finds nothing; whatever record is then lost or comes back, it does.

The cleaner's results are held to the oracle elsewhere (``tests/property/test_cleaned_logs.py``), so what is
found here would be the verifier's own error.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from siltstone.compaction.report import CLEANED
from siltstone.verify.checking import check_in_process, verify
from siltstone.verify.findings import LogVerdict
from siltstone.verify.pairs import CleaningSettings, cleaning_settings
from tests.support.cleaning import logs, oracle
from tests.support.cleaning.lives import Life, Living, lives
from tests.support.cleaning.naive import batches_of
from tests.support.cleaning.random_logs import RandomLog, random_logs
from tests.support.thoroughness import examples
from tests.support.verify.editing import read_batches


@pytest.fixture(autouse=True, scope="module")
def quick_disk() -> Iterator[None]:
    """Nothing here crashes: the disk need not be waited for."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


def _settings(config: Mapping[str, object], now_ms: int, *, exact: bool) -> CleaningSettings:
    return cleaning_settings(logs.settings(config), now_ms, cleaned_at_is_exact=exact)


def _verdict(before: Path, after: Path, settings: CleaningSettings) -> LogVerdict:
    (verdict,) = verify([before], [after], check_in_process, lambda _: settings).logs
    return verdict


def _offsets(partition: Path) -> set[int]:
    return {
        record.offset
        for path in partition.glob("*.log")
        for batch in batches_of(path.read_bytes())
        for record in batch.records
    }


@settings(max_examples=examples(40), deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(lives())
def test_every_cleaning_in_a_logs_life_passes(life: Life) -> None:
    with tempfile.TemporaryDirectory() as folder:
        living = Living(Path(folder) / "log", life)
        for number, round_ in enumerate(life.rounds):
            living.write(round_)
            before = Path(folder) / f"before-{number}"
            shutil.copytree(living.root, before, copy_function=shutil.copy2)
            now_ms = living.clock.now_ms()
            result = logs.run(living.root, config=living.settings(round_), now_ms=now_ms)
            for exact in (True, False):
                settings = _settings(living.settings(round_), now_ms, exact=exact)
                verdict = _verdict(before, living.root, settings)
                assert verdict.is_sound, (number, exact, [str(problem) for problem in verdict.problems])
            if result.status == CLEANED and not result.discarded.expired:
                assert verdict.removed["superseded"] == result.discarded.superseded
                assert verdict.removed["aborted"] == result.discarded.aborted
                assert verdict.removed["keyless"] == result.discarded.keyless


def _drop(partition: Path, offset: int, interval: int) -> None:
    """Remove one record, and its batch where no record remains."""
    for path in partition.glob("*.log"):
        base = int(path.stem)
        batches = read_batches(partition, base)
        if any(record.offset == offset for batch in batches for record in batch.records):
            raw = []
            for batch in batches:
                remaining = [record for record in batch.records if record.offset != offset]
                same = len(remaining) == len(batch.records)
                raw.append(batch.raw if same else batch.rebuilt(remaining) if remaining else b"")
            logs.write_segment(partition, base, b"".join(raw), interval)


@settings(max_examples=examples(40), deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(random_logs(), st.randoms(use_true_random=False))
def test_random_logs_pass_and_a_lost_record_is_found(log: RandomLog, random: object) -> None:
    with tempfile.TemporaryDirectory() as folder:
        before, after = Path(folder) / "before", Path(folder) / "after"
        log.write(before)
        partition = log.write(after)
        result = logs.run(after, config=log.config, now_ms=log.now_ms)
        settings = _settings(log.config, log.now_ms, exact=True)
        verdict = _verdict(before, after, settings)
        assert verdict.is_sound, [str(problem) for problem in verdict.problems]
        if result.status != CLEANED:
            return
        retained = [
            record.offset
            for base in sorted(int(path.stem) for path in partition.glob("*.log"))[:-1]
            if base < (verdict.cleaned_end_offset or 0)
            for batch in read_batches(partition, base)
            for record in batch.records
        ]
        if retained:
            _drop(partition, random.choice(retained), log.interval)  # type: ignore[attr-defined]
            assert not _verdict(before, after, settings).is_sound


def test_the_oracles_first_dirty_offset_is_the_verifiers() -> None:
    """One more way in which the two could differ: a checkpoint that is outside of the log."""
    with tempfile.TemporaryDirectory() as folder:
        segments = {
            10: [logs.one(10, "a"), logs.one(11, "b")],
            12: [logs.one(12, "a")],
            13: [logs.one(13, "c")],
        }
        before, after = Path(folder) / "before", Path(folder) / "after"
        for path in (before, after):
            partition = logs.write_log(path, segments, checkpoint=5)
        expected = oracle.clean(partition, oracle.Cleaning(now_ms=logs.NOW, checkpoint=5))
        logs.run(after)
        verdict = _verdict(before, after, _settings({}, logs.NOW, exact=True))
        assert verdict.is_sound, verdict.problems
        assert (verdict.first_dirty_offset, verdict.cleaned_end_offset) == (
            expected.first_dirty,
            expected.end,
        )
        assert _offsets(partition) == {11, 12, 13}
