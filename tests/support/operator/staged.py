"""Golden logs as log directories of a broker, cleaned without Spark, and what to compare afterwards."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from siltstone.base import files
from siltstone.base.records.codecs import Scratch
from siltstone.base.records.decode import decode_records
from siltstone.commands import clean as app
from siltstone.compaction.engine import Engine, InProcessEngine, Progress
from siltstone.compaction.report import LogResult
from siltstone.log.checkpoints import read_checkpoint
from siltstone.log.names import TopicPartition
from siltstone.log.segments import list_segments, windows
from tests.support.golden_sets import Case, load_case, stage_round

Listing = dict[str, tuple[bytes, int, int]]


def room_in_waves(new_files: int, *, offsets: int) -> int:
    """What must be allowed for a log to go in waves of that many bytes: for each offset 16 bytes that a
    shuffle may spill and 4 of its own where it is retained."""
    return new_files + 20 * offsets


SMALL_WAVES = room_in_waves(15_000, offsets=482)
"""Waves of one group for basic_zipf_ts."""


def in_process(request: app.CleanRequest, progress: Progress | None) -> Engine:
    """The engine of these tests."""
    return InProcessEngine()


def no_engine(request: app.CleanRequest, progress: Progress | None) -> Engine:
    """An engine that must not be asked for."""
    raise AssertionError("an engine was started")


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """One golden round in a log directory of its own, and the request that cleans it in place."""

    case: Case
    directory: Path
    request: app.CleanRequest

    @property
    def partition(self) -> Path:
        return self.directory / f"{self.case.topic}-{self.case.partition}"

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.case.topic, self.case.partition)

    def asking(self, **changes: Any) -> app.CleanRequest:
        """The request with some flags changed."""
        return replace(self.request, **changes)

    def clean(self, **changes: Any) -> app.CleanOutcome:
        return app.clean(self.asking(**changes), engine=in_process)

    def clean_one(self, **changes: Any) -> LogResult:
        """Clean; the one log's result."""
        (result,) = self.clean(**changes).results
        return result

    def checkpoint(self) -> int | None:
        """What the cleaner's checkpoint says of the log."""
        return read_checkpoint(self.directory / "cleaner-offset-checkpoint").get(self.topic_partition)


def stage(golden: Path, name: str, destination: Path, number: int = 0) -> Staged:
    """A round of a golden set, ready to be cleaned."""
    case = load_case(golden, name)
    round_ = case.rounds[number]
    directory = stage_round(case, round_, destination)
    request = app.CleanRequest(
        directories=[directory],
        in_place=True,
        topics=[case.topic],
        config=[f"{key}={value}" for key, value in round_.command_config.items()],
        now_ms=round_.now_ms,
    )
    return Staged(case=case, directory=directory, request=request)


def stage_several(golden: Path, names: Iterable[str], destination: Path) -> tuple[Path, app.CleanRequest]:
    """Several golden logs in one log directory, with a file of their settings."""
    config, offsets, high = [], [], []
    now_ms = 0
    for name in names:
        staged = stage(golden, name, destination / "apart" / name)
        now_ms = max(now_ms, staged.request.now_ms or 0)
        config += [f"{staged.case.topic}:{setting}" for setting in staged.request.config]
        directory = destination / "data"
        directory.mkdir(exist_ok=True)
        for path in staged.directory.iterdir():
            if path.name in (".kafka_cleanshutdown", "meta.properties", ".lock", staged.partition.name):
                path.rename(directory / path.name)
        for lines, checkpoint in ((offsets, "recovery-point"), (high, "replication")):
            text = (staged.directory / f"{checkpoint}-offset-checkpoint").read_text().splitlines()
            lines.extend(text[2:])
    for lines, checkpoint in ((offsets, "recovery-point"), (high, "replication")):
        text = "\n".join(["0", str(len(lines)), *lines, ""])
        (directory / f"{checkpoint}-offset-checkpoint").write_text(text)
    (destination / "topics.config").write_text("\n".join(config))
    request = app.CleanRequest(
        directories=[directory], in_place=True, config_file=destination / "topics.config", now_ms=now_ms
    )
    return directory, request


def listing(directory: Path) -> Listing:
    """Every file below a directory: its bytes, mode and modification time."""
    files = {}
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            facts = path.stat()
            files[str(path.relative_to(directory))] = (path.read_bytes(), facts.st_mode, facts.st_mtime_ns)
    return files


def logs_in(directory: Path) -> Listing:
    """What cleaning makes of a log directory: its partitions' files, and the bytes of the checkpoint."""
    checkpoint = directory / "cleaner-offset-checkpoint"
    files = {name: facts for name, facts in listing(directory).items() if "/" in name}
    return {**files, checkpoint.name: (checkpoint.read_bytes(), 0, 0)}


def names_in(directory: Path) -> dict[str, int]:
    """Every name below a directory, folders too, with its modification time."""
    return {
        str(path.relative_to(directory)): path.stat().st_mtime_ns for path in sorted(directory.rglob("*"))
    }


def log_bytes(partition: Path) -> bytes:
    """The batches of a log one behind the other, whatever the segments are."""
    return b"".join(Path(segment.path).read_bytes() for segment in list_segments(partition))


Record = tuple[int, bytes | None, bytes | None]


def records(partition: Path, below: int | None = None) -> Iterator[Record]:
    """A log's records: offset, key, value; only those below an offset where that is given."""
    for segment in list_segments(partition):
        scratch = Scratch()
        with files.Reader(segment.path) as reader:
            for window in windows(reader):
                columns = decode_records(
                    window.data, window.batches, scratch, path=segment.path, origin=window.origin
                )
                for row in range(len(columns)):
                    offset = int(columns.offset[row])
                    if below is None or offset < below:
                        yield offset, columns.key(row), columns.value(row)


def last_values(partition: Path, below: int | None = None) -> dict[bytes | None, tuple[int, bytes | None]]:
    """The last record of every key: its offset and value."""
    return {key: (offset, value) for offset, key, value in records(partition, below)}


def no_leftovers(directory: Path, *allowed: str) -> None:
    """Nothing of ours, and nothing half-done, is in a log directory."""
    odd = (".cleaned", ".swap", ".deleted", ".tmp", ".siltstone")
    names = [path.name for path in directory.rglob("*")]
    leftovers = [name for name in names if name.endswith(odd) or name.startswith(".siltstone")]
    assert set(leftovers) <= set(allowed)


def is_root() -> bool:
    return os.geteuid() == 0
