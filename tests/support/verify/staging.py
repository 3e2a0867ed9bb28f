"""Golden pairs as two log directories, before and after, and the check of them in this process."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from siltstone.base.config import Config, parse_assignments
from siltstone.verify.checking import Checker, check_in_process, verify
from siltstone.verify.findings import LogVerdict
from siltstone.verify.pairs import CleaningSettings, cleaning_settings
from tests.support import golden_sets

LATER = 1 << 60


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A log before and after, each in a directory of its own, and what is known of its cleaning."""

    before: Path
    after: Path
    topic_partition: str
    settings: CleaningSettings

    @property
    def partition(self) -> Path:
        """The partition that was cleaned."""
        return self.after / self.topic_partition

    @property
    def original(self) -> Path:
        """The partition as it was."""
        return self.before / self.topic_partition

    @property
    def interval(self) -> int:
        """Its ``index.interval.bytes``."""
        assert self.settings.index_interval is not None
        return self.settings.index_interval

    def verdict(self, checker: Checker = check_in_process) -> LogVerdict:
        """Check it."""
        (verdict,) = verify([self.before], [self.after], checker, lambda _: self.settings).logs
        return verdict


def stage_pair(case: golden_sets.Case, round_: golden_sets.Round, path: Path) -> Pair:
    """One round: Kafka's directory before and Kafka's directory after."""
    assert round_.after is not None
    before = golden_sets.stage_round(case, round_, path / "before")
    after = path / "after"
    after.mkdir()
    partition = golden_sets.partition_directory(case, after)
    shutil.copytree(round_.after, partition, copy_function=shutil.copy2)
    shutil.copy(before / "meta.properties", after / "meta.properties")
    for name in golden_sets.CHECKPOINTS:
        offset = round_.checkpoints_after.get(name)
        if offset is not None:
            golden_sets.write_checkpoint(after / name, {(case.topic, case.partition): offset})
    settings = _settings(round_, round_.now_is_exact)
    return Pair(before=before, after=after, topic_partition=partition.name, settings=settings)


def with_clock(pair: Pair, round_: golden_sets.Round, *, is_exact: bool) -> Pair:
    """The same directories, with another answer to whether the time of the cleaning is known."""
    return replace(pair, settings=_settings(round_, is_exact))


def _settings(round_: golden_sets.Round, is_exact: bool) -> CleaningSettings:
    config = [f"{key}={value}" for key, value in round_.command_config.items()]
    return cleaning_settings(
        Config(parse_assignments(config, "case.json")),
        LATER if round_.now_ms is None or not is_exact else round_.now_ms,
        cleaned_at_is_exact=is_exact and round_.now_ms is not None,
    )
