"""``siltstone compact-topic``: side-by-side compaction of a directory that no broker serves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cyclopts import Parameter

from siltstone.base.errors import UsageError
from siltstone.cli.output import (
    Json,
    TopicFlags,
    note,
    place_of,
    write_json,
    write_line,
    write_table,
)
from siltstone.commands import clean
from siltstone.commands.compaction import EngineFor, PartitionCompaction, TopicCompaction
from siltstone.commands.compaction import compact_topic as compact
from siltstone.commands.plots import size_text
from siltstone.commands.policies import DEFAULT_MASTER, reads_to_the_end
from siltstone.compaction.ledger.compactor import CompactionEngine
from siltstone.runtime.compactions import ERROR, counts_text

SMALL_BYTES = 64 << 20
"""Up to so many bytes one process is done before Spark has started."""
_COLUMNS = ("partition", "status", "up to offset", "ledger", "entries", "bytes", "backlog bytes")


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class CompactTopicFlags(TopicFlags):
    """The flags of ``siltstone compact-topic``.

    Parameters
    ----------
    topic
        The topic: persistent://tenant/namespace/name, with -partition-N for one partition, or its name here.
    reset
        Forget the ledger and compact anew what is left of the originals.
    high_watermark
        "end": a broker's logs without an entry in replication-offset-checkpoint have no other replica.
    master
        The Spark master; unless given, what is small is done without Spark, the rest on local[*].
    dry_run
        Say how much would be read, change nothing.
    """

    reset: bool = False
    high_watermark: str | None = None
    master: str | None = None
    dry_run: bool = False


def compact_topic(*, flags: CompactTopicFlags | None = None, json_: Json = False) -> int:
    """Compact a topic beside its originals, as pulsar compact-topic does.

    What it writes is a ledger with the last record of each key, which readers of the compacted view see in
    the place of the originals; these stay as they are. Locks the directory, as a broker does.

    Parameters
    ----------
    json_
        Print one JSON document.
    """
    flags = flags or CompactTopicFlags()
    topic = flags.the_topic()
    to_the_end = reads_to_the_end(flags.high_watermark)
    if flags.reset and flags.dry_run:
        raise UsageError("--reset goes without --dry-run")
    compaction = compact(
        place_of(flags.dir, None),
        topic,
        engine_for(flags.dir, flags.master),
        reset=flags.reset,
        to_the_end=to_the_end,
        dry_run=flags.dry_run,
    )
    return show_compaction(compaction, dry_run=flags.dry_run, as_json=json_)


def engine_for(folders: Sequence[Path], master: str | None = None) -> EngineFor:
    """Makes an engine on the given master; without one, Spark is used for more than ``SMALL_BYTES``."""

    def make(size: int) -> CompactionEngine:
        chosen = DEFAULT_MASTER if master is None and size > SMALL_BYTES else master
        return clean.compaction_engine(chosen, folders)

    return make


def show_compaction(compaction: TopicCompaction, *, dry_run: bool = False, as_json: bool = False) -> int:
    """Print what was compacted, or would be; returns the exit status."""
    if as_json:
        write_json({"dry_run": dry_run, **compaction.to_json()})
    else:
        for partition in compaction.partitions:
            write_line(_line(f"{compaction.topic}-{partition.partition}", partition, dry_run=dry_run))
    return _notes(compaction)


def _line(where: str, partition: PartitionCompaction, *, dry_run: bool) -> str:
    if dry_run:
        first = 0 if partition.compacted is None else partition.compacted.horizon
        return f"{where}: would be compacted from offset {first} on: {size_text(partition.backlog or 0)}"
    if partition.result is None:
        return f"{where}: {partition.status.status}"
    if not partition.result.changed:
        return f"{where}: {partition.status.status}: nothing new below offset {partition.result.horizon}"
    result = partition.result
    return (
        f"{where}: {partition.status.status}: {result.read_records:,} records up to offset "
        f"{result.horizon - 1:,}: {counts_text(result)}; "
        f"ledger {result.ledger_id}: {result.entries:,} entries, {size_text(result.size)}"
    )


def show_status(compaction: TopicCompaction, *, as_json: bool) -> int:
    """Print the status of a topic's compactions; returns the exit status."""
    if as_json:
        write_json(compaction.to_json())
        return _notes(compaction)
    write_line(f"{compaction.topic}: {compaction.status.status}")
    write_line(f"compactionThreshold: {compaction.threshold.size} ({compaction.threshold.source})")
    rows = []
    for partition in compaction.partitions:
        ledger = partition.compacted
        facts = (ledger.horizon - 1, ledger.id, ledger.entries, ledger.size) if ledger else (None,) * 4
        rows.append((str(partition.partition), partition.status.status, *facts, partition.backlog))
    write_table("", _COLUMNS, rows, left=2)
    return _notes(compaction)


def _notes(compaction: TopicCompaction) -> int:
    note(*compaction.notes)
    for partition in compaction.partitions:
        where = f"{compaction.topic}-{partition.partition}"
        failures = dict.fromkeys(filter(None, (partition.status.last_error, partition.failure)))
        note(*(failure if failure.startswith(where) else f"{where}: {failure}" for failure in failures))
    has_failed = any(
        partition.failure or partition.status.status == ERROR for partition in compaction.partitions
    )
    return 1 if has_failed else 0
