"""The golden data: partition directories of real Kafka brokers, and what Kafka's own cleaner made of them.

    golden/NAME/case.json        the topic, and for each round the config, the clock and the checkpoints
    golden/NAME/before, after    the partition directory before and after a cleaning; before2, after2, …
    golden/NAME/records_*.jsonl  every segment, batch and record of a directory as Kafka's reader decodes it
    golden/recovery/NAME         a directory stopped amid a swap, and after the broker's next start
    golden/legacy/NAME           logs of record format v0 and v1: before, and the segments of after_43, which
                                 is what the cleaner of Kafka 4.3 made of it

A test takes the session fixture `golden` (the unpacked root), loads a case and stages one of its rounds as a
log directory of its own; the unpacked files themselves are shared and must not be changed.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from demo.archive import unpack

REPOSITORY = Path(__file__).resolve().parents[2]
DATA = REPOSITORY / "tests" / "data"
CLUSTER_ID = "c2lsdHN0b25lLXRlc3Rz-w"
DIRECTORY_ID = "c2lsdHN0b25lLWRpci0w-w"
CHECKPOINTS = (
    "cleaner-offset-checkpoint",
    "replication-offset-checkpoint",
    "recovery-point-offset-checkpoint",
    "log-start-offset-checkpoint",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One cleaning of a case: the directory before, the directory after, and what was in force.

    `now_ms` is the clock of Kafka's cleaner, None where only retention ran; `now_is_exact` is False where
    that is only what the broker logged as it began. `cleaned` is None where the log was not cleaned at all.
    `after` is None where there is no such directory (legacy sets; a start that the broker refused). `raw` is
    the round's own part of case.json.
    """

    number: int
    before: Path
    after: Path | None
    cleaned: bool | None
    now_ms: int | None
    now_is_exact: bool
    config: Mapping[str, str]
    checkpoints_before: Mapping[str, int | None]
    checkpoints_after: Mapping[str, int | None]
    mtimes_before_ms: Mapping[str, int]
    clean_shutdown: bool
    raw: Mapping[str, Any]

    @property
    def command_config(self) -> dict[str, str]:
        """`config` as the command takes it: the small segment size under its public name, segment.bytes."""
        config = dict(self.config)
        small = config.pop("internal.segment.bytes", None)
        return config if small is None else {**config, "segment.bytes": small}

    @property
    def records_before(self) -> Path:
        """The file with the decoded content of `before`."""
        return self.before.parent / f"records_{self.before.name}.jsonl"

    @property
    def records_after(self) -> Path:
        """The file with the decoded content of `after`."""
        assert self.after is not None, self.before
        return self.after.parent / f"records_{self.after.name}.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One golden set. `raw` is the whole case.json."""

    name: str
    path: Path
    topic: str
    partition: int
    broker: Mapping[str, Any]
    rounds: tuple[Round, ...]
    raw: Mapping[str, Any]


def _unpack(archive: Path, destination: Path) -> None:
    """As the demo unpacks; by GNU's tar, where it is, in a quarter of the time."""
    tar = shutil.which("tar")
    if tar is None or shutil.which("xz") is None or sys.platform != "linux":
        unpack(archive, destination)
        return
    destination.mkdir(parents=True, exist_ok=True)
    subprocess.run([tar, "-xJf", archive, "--no-same-owner", "-C", destination], check=True)


def unpack_golden(destination: Path) -> Path:
    """Unpack all golden sets below a directory and return their root."""
    for name in ("golden.tar.xz", "legacy_after_43.tar.xz"):
        _unpack(DATA / name, destination)
    return destination / "golden"


def unpack_cleaned(destination: Path) -> Path:
    """Unpack more sets that Kafka 4.3's cleaner cleaned, by kind (`old_formats`, …); returns their root."""
    _unpack(DATA / "cleaned.tar.xz", destination)
    return destination / "cleaned"


def unpack_recovery(destination: Path) -> Path:
    """Unpack the directories that a broker was started on after a stop or with damage; returns their root."""
    _unpack(DATA / "recovery.tar.xz", destination)
    return destination / "golden"


def unpack_brokers(destination: Path) -> Path:
    """Unpack the stopped brokers `whole_39` and `whole_28`, before and after cleaning; returns their root."""
    _unpack(DATA / "brokers.tar.xz", destination)
    return destination / "golden"


def unpack_broker(destination: Path) -> tuple[Path, Path]:
    """Unpack the stopped broker `whole_43`, before cleaning; returns its log directories data0 and data1."""
    unpack(REPOSITORY / "demo" / "data" / "broker.tar.xz", destination)
    return destination / "data0", destination / "data1"


def case_names(root: Path) -> list[str]:
    """The names of the sets with cleaning and retention rounds in today's record format."""
    apart = {"recovery", "legacy", "whole_43"}
    return sorted(path.parent.name for path in root.glob("*/case.json") if path.parent.name not in apart)


def recovery_names(root: Path) -> list[str]:
    """The names of the interrupted swaps, as `load_case` takes them."""
    return sorted(f"recovery/{path.parent.name}" for path in root.glob("recovery/*/case.json"))


def legacy_names(root: Path) -> list[str]:
    """The names of the v0 and v1 sets, as `load_case` takes them."""
    return sorted(f"legacy/{path.parent.name}" for path in root.glob("legacy/*/case.json"))


def load_case(root: Path, name: str) -> Case:
    """Read the case.json of one set: `basic`, `recovery/us_3_swap`, `legacy/v0_gzip`."""
    path = root / name
    raw = json.loads((path / "case.json").read_text(encoding="utf-8"))
    entries = raw["rounds"] if "rounds" in raw else [_round_of_recovery(raw)]
    return Case(
        name=name,
        path=path,
        topic=raw.get("topic", path.name),
        partition=raw.get("partition", 0),
        broker=raw.get("broker", {}),
        rounds=tuple(
            _load_round(path, number, entry)
            for number, entry in enumerate(entries, start=1)
            if (path / entry["before"]).is_dir()
        ),
        raw=raw,
    )


def read_records(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a records file as dicts, in file order; `t` is segment, batch, rec, producer and so on."""
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def stage_round(case: Case, round_: Round, destination: Path) -> Path:
    """Build a broker's log directory around one round's `before` and return it (it is `destination`).

    The partition lies in `destination/<topic>-<partition>` with its file times; beside it the checkpoints,
    the clean-shutdown marker (unless the round was an unclean stop), meta.properties and an unheld .lock.
    """
    destination.mkdir(parents=True, exist_ok=True)
    partition = partition_directory(case, destination)
    shutil.copytree(round_.before, partition, copy_function=shutil.copy2)
    _restore_times(partition, round_.mtimes_before_ms)
    for name in CHECKPOINTS:
        offset = round_.checkpoints_before.get(name)
        if offset is not None:
            write_checkpoint(destination / name, {(case.topic, case.partition): offset})
    if round_.clean_shutdown:
        (destination / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":-1}', encoding="utf-8")
    _write_meta_properties(destination / "meta.properties")
    (destination / ".lock").touch()
    return destination


def partition_directory(case: Case, log_directory: Path) -> Path:
    """The case's partition directory inside a log directory."""
    return log_directory / f"{case.topic}-{case.partition}"


def write_checkpoint(path: Path, offsets: Mapping[tuple[str, int], int]) -> None:
    """Write an offset checkpoint: version 0, the number of entries, then `topic partition offset` lines."""
    lines = [f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items()]
    path.write_text("".join(f"{line}\n" for line in ["0", str(len(lines)), *lines]), encoding="utf-8")


def read_checkpoint(path: Path) -> dict[tuple[str, int], int]:
    """Read an offset checkpoint; a missing file has no entries."""
    if not path.exists():
        return {}
    version, count, *lines = path.read_text(encoding="utf-8").splitlines()
    assert version == "0" and int(count) == len(lines), path
    entries = [line.split(" ") for line in lines]
    return {(topic, int(partition)): int(offset) for topic, partition, offset in entries}


def _load_round(path: Path, number: int, entry: Mapping[str, Any]) -> Round:
    after = path / entry["after"]
    return Round(
        number=number,
        before=path / entry["before"],
        after=after if after.is_dir() else None,
        cleaned=entry.get("cleaned"),
        now_ms=entry.get("now_ms"),
        now_is_exact=bool(entry.get("now_ms_exact")),
        config=entry["config"],
        checkpoints_before=entry["checkpoints_before"],
        checkpoints_after=entry.get("checkpoints_after", {}),
        mtimes_before_ms={item["file"]: item["mtime_ms"] for item in entry["listing_before"]},
        clean_shutdown=entry.get("clean_shutdown", True),
        raw=entry,
    )


def _round_of_recovery(raw: Mapping[str, Any]) -> dict[str, Any]:
    """A recovery case in the form of a round, so that it is staged like the others."""
    return {
        **raw,
        "before": "before",
        "after": "after",
        "config": raw["topic_config"],
        "checkpoints_before": {
            "recovery-point-offset-checkpoint": raw["recovery_point"],
            "replication-offset-checkpoint": raw["high_watermark_checkpoint"],
            "log-start-offset-checkpoint": raw["log_start_checkpoint"],
        },
        "clean_shutdown": raw["clean_shutdown_marker"],
    }


def _restore_times(directory: Path, mtimes_ms: Mapping[str, int]) -> None:
    """Set each file's time to the one listed, where the copy's differs by a millisecond or more."""
    for name, mtime_ms in mtimes_ms.items():
        path = directory / name
        if path.stat().st_mtime_ns // 1_000_000 != mtime_ms:
            os.utime(path, ns=(mtime_ms * 1_000_000, mtime_ms * 1_000_000))


def _write_meta_properties(path: Path) -> None:
    lines = ["#", "version=1", f"cluster.id={CLUSTER_ID}", "node.id=0", f"directory.id={DIRECTORY_ID}"]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
