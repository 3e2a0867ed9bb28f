"""Kafka's dump tool as an independent judge of segment files, and what it says as data.

`kafka-dump-log` (`org.apache.kafka.tools.DumpLogSegments` in 4.x) exits 0 on most damage and says it in
words, so `find_faults` reads the words. Two things that it says of a log that Kafka itself has cleaned are no
faults: "Non-consecutive offsets" for each gap, and a timestamp mismatch (log timestamp -1) where a time index
entry points at an empty batch, kept for its producer: the tool looks for the timestamp among the records.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.kafka.toolbox import run_tool

_FAULT = re.compile(
    r"^(Found .*|Mismatches in .*|Could not .*|\s*Index offset: \d+, .*|\s*Index timestamp: \d+, .*"
    r"|Exception .*|Caused by: .*|.*\bisvalid: false\b.*|.*[Cc]orrupt.*Exception.*)$"
)
_FILE = re.compile(r"^(?:Dumping |Found timestamp mismatch in :|Mismatches in :)(.*)$")
_NO_LOG_TIMESTAMP = re.compile(r"^\s*Index timestamp: (\d+), log timestamp: -1$")
_BATCH = re.compile(r"^baseOffset: (\d+) lastOffset: (\d+) count: (\d+) .*")
_RECORD = re.compile(r"^\| offset: (\d+) .*")
_ABORTED = re.compile(r"^version: 0 producerId: (\d+) firstOffset: (\d+) lastOffset: (\d+) .*")
_FIELD = re.compile(r"(\w+): (\S+)")


Excused = Mapping[Path, set[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpedBatch:
    """One batch line of a dump; `fields` holds its `name: value` pairs as printed."""

    base_offset: int
    last_offset: int
    count: int
    fields: dict[str, str]
    record_offsets: list[int] = field(default_factory=list)

    @property
    def max_timestamp(self) -> int:
        """The header's largest timestamp, in ms."""
        return int(self.fields.get("CreateTime") or self.fields["LogAppendTime"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Dump:
    """What one run of the dump tool said; `batches` by file name."""

    returncode: int
    text: str
    batches: dict[Path, list[DumpedBatch]]
    faults: list[str]


def dump_logs(files: Sequence[Path]) -> Dump:
    """`--deep-iteration --print-data-log` over `.log` files, in one run."""
    return _run_dump(["--deep-iteration", "--print-data-log"], files, {})


def dump_indexes(files: Sequence[Path], mode: str, excused: Excused) -> Dump:
    """`mode` is `--index-sanity-check` or `--verify-index-only`, over `.index` and `.timeindex` files."""
    return _run_dump([mode], files, excused)


def assert_dump_clean(*partition_dirs: Path) -> Dump:
    """Fail unless Kafka's tool finds nothing wrong with any segment or index; return the dump of the logs."""
    logs = [path for folder in partition_dirs for path in sorted(folder.glob("*.log"))]
    indexes = [path.with_suffix(suffix) for path in logs for suffix in (".index", ".timeindex")]
    assert logs, f"no .log files in {[str(folder) for folder in partition_dirs]}"
    missing = [str(path) for path in indexes if not path.exists()]
    assert not missing, f"segments without their indexes: {missing}"
    dump = dump_logs(logs)
    excused = empty_batch_times(dump)
    checks = [
        dump_indexes(indexes, mode, excused) for mode in ("--index-sanity-check", "--verify-index-only")
    ]
    faults = [fault for run in (dump, *checks) for fault in run.faults] + find_disorder(dump)
    assert not faults, "kafka-dump-log finds:\n" + "\n".join(faults[:40])
    assert set(dump.batches) == set(logs), "kafka-dump-log did not read every file"
    return dump


def empty_batch_times(dump: Dump) -> Excused:
    """By time index: the largest timestamps of its segment's batches without records."""
    return {
        path.with_suffix(".timeindex"): {batch.max_timestamp for batch in batches if batch.count == 0}
        for path, batches in dump.batches.items()
    }


def find_faults(text: str, returncode: int, excused: Excused) -> list[str]:
    """The lines that tell of damage, each after the file they belong to, and a non-zero exit."""
    faults: list[str] = []
    current = ""
    for line in text.splitlines():
        if match := _FILE.match(line):
            current = match.group(1)
        elif match := _NO_LOG_TIMESTAMP.match(line):
            if int(match.group(1)) not in excused.get(Path(current), set()):
                faults.append(f"{current}: {line}")
        elif not line.startswith("| offset:") and _FAULT.match(line):
            faults.append(f"{current}: {line[:300]}")
    if returncode != 0:
        faults.append(f"{current}: exit code {returncode}")
    return faults


def find_disorder(dump: Dump) -> list[str]:
    """Offsets that do not rise, or lie outside their batch, or do not number its count."""
    faults: list[str] = []
    for path, batches in dump.batches.items():
        before = int(path.stem) - 1
        for batch in batches:
            inside = all(batch.base_offset <= offset <= batch.last_offset for offset in batch.record_offsets)
            rising = sorted(set(batch.record_offsets)) == batch.record_offsets
            control = batch.fields.get("isControl") == "true"
            counted = control or len(batch.record_offsets) == batch.count
            if batch.base_offset <= before or not (inside and rising and counted):
                faults.append(f"{path}: disorder in batch {batch}")
            before = batch.last_offset
    return faults


def aborted_transactions(dump: Dump) -> dict[str, set[tuple[int, int, int]]]:
    """By partition directory: producer id, first and last offset of each entry in its `.txnindex` files."""
    entries: dict[str, set[tuple[int, int, int]]] = {}
    current = ""
    for line in dump.text.splitlines():
        if line.startswith("Dumping "):
            current = Path(line).parent.name
        elif match := _ABORTED.match(line):
            producer_id, first, last = (int(text) for text in match.groups())
            entries.setdefault(current, set()).add((producer_id, first, last))
    return entries


def _run_dump(flags: Sequence[str], files: Sequence[Path], excused: Excused) -> Dump:
    ran = run_tool("kafka-dump-log", *flags, "--files", ",".join(str(path) for path in files))
    text = (ran.stdout + ran.stderr).decode(errors="replace")
    return Dump(
        returncode=ran.code,
        text=text,
        batches=parse_batches(text.split("\n")),
        faults=find_faults(text, ran.code, excused),
    )


def parse_batches(lines: Iterable[str]) -> dict[Path, list[DumpedBatch]]:
    """Batch and record lines by dumped file, in their order."""
    batches: dict[Path, list[DumpedBatch]] = {}
    current: list[DumpedBatch] = []
    for line in lines:
        if line.startswith("Dumping "):
            current = batches.setdefault(Path(line.removeprefix("Dumping ")), [])
        elif match := _BATCH.match(line):
            base, last, count = (int(text) for text in match.groups())
            fields = dict(_FIELD.findall(line))
            current.append(DumpedBatch(base_offset=base, last_offset=last, count=count, fields=fields))
        elif (match := _RECORD.match(line)) and current:
            current[-1].record_offsets.append(int(match.group(1)))
    return batches
