"""``siltstone topics``: topics of log directories, as kafka-topics has them; ``topics compact``, ``topics
compaction-status`` and ``siltstone compact-topic`` as Pulsar's tools have them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from siltstone.base.errors import UsageError
from siltstone.cli import output
from siltstone.commands import compaction
from siltstone.commands import topics as commands
from siltstone.commands.directories import BrokerDirectories
from siltstone.commands.engines import parse_spark_conf, uses_spark
from siltstone.commands.explain_page import counted, size_text
from siltstone.commands.policies import high_watermark_is_end
from siltstone.compaction.ledger.compactor import CompactionEngine
from siltstone.runtime.compactions import ERROR, RUNNING, counts_text
from siltstone.runtime.topics import TopicDescription

if TYPE_CHECKING:
    from siltstone.commands.remote import RemoteBroker

_ACTIONS = ("create", "list", "describe", "alter", "delete")
_COMPACTION_ACTIONS = ("compact", "compaction-status")
_INTERVAL_SECONDS = 0.25
_COMPACTION_COLUMNS = ("partition", "status", "up to offset", "ledger", "entries", "bytes", "backlog bytes")
_COLUMNS = ("partition", "directory", "log start", "log end", "high watermark", "bytes", "segments")
_BROKER_COLUMNS = ("leader", "replicas", "isr")
"""Columns that only a broker's metadata has."""
_figures = attrgetter("directory", "log_start_offset", "log_end_offset", "high_watermark", "size", "segments")
"""The cells of a ``PartitionDescription`` in the columns ``_COLUMNS``, but for the first."""


@dataclass(frozen=True, kw_only=True)
class TopicsFlags(output.TopicFlags, output.ServerFlags):
    """The flags of ``siltstone topics``.

    Parameters
    ----------
    create
        Create the topic, and the directory if it does not exist.
    list_
        List the topics' names.
    describe
        Show topics with their settings and partitions.
    alter
        Raise the number of --partitions of topics.
    delete
        Delete topics; their disk space is free at once.
    topic
        A topic; with --list, --describe, --alter and --delete also a regular expression, with compact and
        compaction-status also one partition (TOPIC-partition-N).
    partitions
        The number of partitions; default for a new topic: num.partitions.
    replication_factor
        1: a directory holds one replica.
    config
        A setting of the new topic, key=value, [a,b] for a list; repeat it for more.
    if_exists
        No error if the topic does not exist.
    if_not_exists
        No error if the topic exists.
    server_properties
        The broker's server.properties, for defaults.
    dry_run
        Check everything, change nothing.
    wait_complete
        With compaction-status: wait while a compaction runs.
    """

    create: bool = False
    list_: Annotated[bool, Parameter(name="--list")] = False
    describe: bool = False
    alter: bool = False
    delete: bool = False
    partitions: int | None = None
    replication_factor: int | None = None
    config: Sequence[str] = ()
    if_exists: bool = False
    if_not_exists: bool = False
    server_properties: Path | None = None
    dry_run: bool = False
    wait_complete: Annotated[bool, Parameter(name=("--wait-complete", "-w"))] = False

    def action(self, word: str | None) -> str:
        """The action that the flags choose, or ``word``, one of ``_COMPACTION_ACTIONS`` (None: the command
        has no such word). Raises UsageError for flags that do not go together."""
        chosen = [name for name in _ACTIONS if getattr(self, "list_" if name == "list" else name)]
        chosen += [] if word is None else [word]
        if len(chosen) != 1 or chosen[0] not in (*_ACTIONS, *_COMPACTION_ACTIONS):
            flags = ", ".join(f"--{name}" for name in _ACTIONS)
            others = " or ".join(f"siltstone topics {name}" for name in _COMPACTION_ACTIONS)
            advice = f"pass one of {flags}, or run {others}"
            raise UsageError("no action, or several", advice=advice)
        self._refuse_contradictions(chosen[0])
        return chosen[0]

    def _refuse_contradictions(self, action: str) -> None:
        needs_topic = action in ("create", "alter", "delete", *_COMPACTION_ACTIONS)
        is_missing = needs_topic and self.topic is None
        output.refuse_if(is_missing, f"{_flag_text(action)}: no topic", "pass --topic TOPIC")
        output.refuse_if(
            action == "alter" and self.partitions is None,
            "--alter: no number of partitions",
            "pass --partitions N, or change settings with siltstone configs --alter",
        )
        allowed = {
            "partitions": ("create", "alter"),
            "replication_factor": ("create",),
            "config": ("create",),
            "if_not_exists": ("create",),
            "if_exists": ("alter", "delete", "describe"),
            "dry_run": ("create", "alter", "delete", "compact"),
            "wait_complete": ("compaction-status",),
        }
        for name, actions in allowed.items():
            is_set, flag = getattr(self, name) not in (None, (), False), f"--{name.replace('_', '-')}"
            reason = f"{flag} is only for {' or '.join(map(_flag_text, actions))}"
            output.refuse_if(is_set and action not in actions, reason, f"leave {flag} out")
        output.refuse_if(
            self.replication_factor not in (None, 1, -1),
            f"--replication-factor {self.replication_factor}: a log directory holds one replica "
            "(INVALID_REPLICATION_FACTOR)",
            "pass 1",
        )


def _flag_text(action: str) -> str:
    """An action as it is passed: most are flags, the compaction actions are words."""
    return action if action in _COMPACTION_ACTIONS else f"--{action}"


def topics(
    arguments: tuple[str, ...] = (),
    /,
    *,
    flags: TopicsFlags = TopicsFlags(),
    json_: output.Json = False,
) -> int:
    """List, describe, create, alter, delete and compact the topics of log directories, as kafka-topics does.

    --list, --describe and compaction-status lock nothing and change nothing: they work beside a live broker.
    The others lock the directory, as a broker does.

    Parameters
    ----------
    arguments
        The log directories, also as --dir. Or, as in pulsar-admin, compact TOPIC: compact a topic side by
        side; compaction-status TOPIC: show the result. TOPIC, also as --topic, is its name in Siltstone, or
        persistent://tenant/namespace/name.
    json_
        Print one JSON document instead.
    """
    word = arguments[0] if arguments and arguments[0] in _COMPACTION_ACTIONS else None
    if word is None:
        flags = flags.at([Path(directory) for directory in arguments])
    elif len(arguments) > 1:
        is_second = flags.topic is not None or len(arguments) > 2
        output.refuse_if(
            is_second, f"{arguments[-1]}: two topics", "leave out --topic; pass directories with --dir"
        )
        flags = replace(flags, topic=arguments[1])
    broker = flags.remote()
    if broker is not None:
        return _at_broker(broker, flags.action(word), flags, as_json=json_)
    directories = flags.broker_directories(flags.server_properties)
    action = flags.action(word)
    if action in _COMPACTION_ACTIONS:
        return _compact(directories, action, flags, as_json=json_)
    if action == "list":
        _list(directories.snapshot().names(), flags, as_json=json_)
        return 0
    if action == "describe":
        return _describe(directories, flags, as_json=json_)
    _show_changes(action, _change(directories, action, flags), dry_run=flags.dry_run, as_json=json_)
    return 0


def _list(names: Sequence[str], flags: TopicsFlags, *, as_json: bool) -> None:
    matching = commands.matching_topics(names, flags.topic, if_exists=True)
    if as_json:
        output.write_json({"topics": matching})
    else:
        output.write_lines(*matching)


def _at_broker(broker: RemoteBroker, action: str, flags: TopicsFlags, *, as_json: bool) -> int:
    """Carry out the action at a running broker, by Kafka's protocol; the exit status."""
    reason = f"{_flag_text(action)} works on log directories, not on a running broker"
    output.refuse_if(action in _COMPACTION_ACTIONS, reason, "pass the directories with --dir")
    flags.refuse_at_a_broker("server_properties")
    options = {"dry_run": flags.dry_run}
    if action == "list":
        _list(broker.names(), flags, as_json=as_json)
        return 0
    if action == "describe":
        names = commands.matching_topics(broker.names(), flags.topic, if_exists=flags.if_exists)
        described = [
            (topic, topic.config, partitions, None) for topic, partitions in map(broker.describe, names)
        ]
        return _show_described(described, as_json=as_json)
    if action == "create":
        config = commands.parse_assignments(flags.config, "--config")
        options["if_not_exists"] = flags.if_not_exists
        changes = [broker.create_topic(flags.required_topic(), flags.partitions, config, **options)]
    elif action == "alter":
        assert flags.partitions is not None
        options["if_exists"] = flags.if_exists
        changes = broker.add_partitions(flags.required_topic(), flags.partitions, **options)
    else:
        changes = broker.delete_topics(flags.required_topic(), if_exists=flags.if_exists, **options)
    _show_changes(action, changes, dry_run=flags.dry_run, as_json=as_json)
    return 0


def _compact(directories: BrokerDirectories, action: str, flags: TopicsFlags, *, as_json: bool) -> int:
    """Carry out one of the ``_COMPACTION_ACTIONS``; returns the exit status."""
    topic, dry_run = flags.required_topic(), flags.dry_run
    if action == "compact":
        done = compaction.compact_topic(directories, topic, _engine_for(), dry_run=dry_run)
        return _show_compaction(done, dry_run=dry_run, as_json=as_json)
    state = compaction.compaction_of(directories, topic)
    while flags.wait_complete and state.status.status == RUNNING:
        time.sleep(_INTERVAL_SECONDS)
        state = compaction.compaction_of(directories, topic)
    return _show_status(state, as_json=as_json)


def _change(directories: BrokerDirectories, action: str, flags: TopicsFlags) -> list[commands.TopicChange]:
    """Create, alter or delete topics of directories."""
    topic, options = flags.required_topic(), {"dry_run": flags.dry_run}
    if action == "delete":
        return commands.delete_topics(directories, topic, if_exists=flags.if_exists, **options)
    if action == "alter":
        assert flags.partitions is not None
        return commands.add_partitions(
            directories, topic, flags.partitions, if_exists=flags.if_exists, **options
        )
    config = commands.parse_assignments(flags.config, "--config")
    if directories.snapshot_before_creation().has_brokers_metadata:
        output.note("a broker will not know the topic: its topics are in its metadata log")
    options["if_not_exists"] = flags.if_not_exists
    return [commands.create_topic(directories, topic, flags.partitions, config, **options)]


def _describe(directories: BrokerDirectories, flags: TopicsFlags, *, as_json: bool) -> int:
    snapshot = directories.snapshot()
    names = commands.matching_topics(snapshot.names(), flags.topic, if_exists=flags.if_exists)
    topics = [snapshot.topic(name) for name in names]
    partitions = {topic.name: commands.partitions_of(snapshot, topic) for topic in topics}
    described = [
        (topic, snapshot.overrides(topic), partitions[topic.name], snapshot.partition_count(topic))
        for topic in topics
    ]
    notes = [*snapshot.notes, *snapshot.notes_on(topics)]
    return _show_described(described, notes, as_json=as_json)


_Described = tuple[TopicDescription, Mapping[str, str], Sequence[commands.PartitionDescription], int | None]
"""(topic, its own settings, its partitions here, how many partitions it has by the broker's metadata; None:
unknown)"""


def _show_described(described: Sequence[_Described], notes: Sequence[str] = (), *, as_json: bool) -> int:
    """Show topics; the exit status, 1 if a partition cannot be read."""
    if as_json:
        output.write_json({"topics": [_document(*description) for description in described]})
    else:
        for description in described:
            _show_topic(*description)
    failures = [
        f"{topic.name}-{partition.partition}: {partition.failure}"
        for topic, _, partitions, _ in described
        for partition in partitions
        if partition.failure
    ]
    output.note(*notes, *failures)
    return 1 if failures else 0


def _document(
    topic: TopicDescription,
    own: Mapping[str, str],
    partitions: Sequence[commands.PartitionDescription],
    count_in_metadata: int | None,
) -> dict[str, object]:
    documents = []
    for partition in partitions:
        facts = output.plain(partition)
        del facts["compacted"]
        documents.append({**facts, **compaction.compacted_json(partition.compacted)})
    return {
        "topic": topic.name,
        "topic_id": topic.topic_id,
        "partition_count": len(partitions),
        "partition_count_in_metadata": count_in_metadata,
        "replication_factor": _replication_factor(partitions),
        "configs": dict(own),
        "partitions": documents,
    }


def _show_topic(
    topic: TopicDescription,
    own: Mapping[str, str],
    partitions: Sequence[commands.PartitionDescription],
    count_in_metadata: int | None,
) -> None:
    configs = ",".join(f"{name}={text}" for name, text in sorted(own.items()))
    elsewhere = (
        "" if count_in_metadata in (None, len(partitions)) else f" (of {count_in_metadata} in the metadata)"
    )
    output.write_lines(
        f"Topic: {topic.name}\tTopicId: {topic.topic_id or 'none'}\t"
        f"PartitionCount: {len(partitions)}{elsewhere}\t"
        f"ReplicationFactor: {_replication_factor(partitions)}\tConfigs: {configs}"
    )
    rows = [
        (str(partition.partition), *_figures(partition), *_brokers(partition)) for partition in partitions
    ]
    output.write_table("", (*_COLUMNS, *_BROKER_COLUMNS), rows, left=2)
    for partition in partitions:
        ledger, topic_partition = partition.compacted, f"{topic.name}-{partition.partition}"
        if ledger is not None:
            output.write_lines(
                f"  {topic_partition}: compacted up to offset {ledger.horizon - 1}: "
                f"ledger {ledger.id}, {counted(ledger.entries, 'entry', 'entries')}, "
                f"{counted(ledger.size, 'byte')}"
            )


def _replication_factor(partitions: Sequence[commands.PartitionDescription]) -> int:
    """How many replicas the first partition has, as in Kafka; 1 if no broker's metadata says so."""
    return len((partitions and partitions[0].replicas) or (0,))


def _brokers(partition: commands.PartitionDescription) -> tuple[str | None, ...]:
    """The cells of ``_BROKER_COLUMNS``, as kafka-topics writes them."""
    leader = "none" if partition.leader == -1 else partition.leader
    lists = (ids and ",".join(map(str, ids)) for ids in (partition.replicas, partition.isr))
    return (None if leader is None else str(leader), *(text or None for text in lists))


def _show_changes(
    action: str, changes: Sequence[commands.TopicChange], *, dry_run: bool, as_json: bool
) -> None:
    if as_json:
        documents = [
            {name: value for name, value in output.plain(change).items() if value is not None}
            for change in changes
        ]
        output.write_json({"action": action, "dry_run": dry_run, "topics": documents})
        return
    for change in changes:
        count = "" if action == "delete" else f" with {counted(change.partitions or 0, 'partition')}"
        done = f"{'would be ' if dry_run else ''}{change.status}{count}"
        output.write_lines(f"topic {change.topic} {'exists already' if change.status == 'exists' else done}")
    if not changes:
        output.write_lines("no such topic: nothing to do")


@dataclass(frozen=True, kw_only=True)
class CompactTopicFlags(output.TopicFlags):
    """The flags of ``siltstone compact-topic``.

    Parameters
    ----------
    topic
        The topic: its name in Siltstone, or persistent://tenant/namespace/name; -partition-N: one partition.
    reset
        Delete the ledger and compact what is left of the log.
    high_watermark
        "end": a broker's logs without an entry in replication-offset-checkpoint have no other replica.
    engine
        What does the work: spark, process (this process), or auto: Spark from 256 MiB on, or with --master.
    master
        The Spark master; default: that of spark-submit, or local[*].
    spark_conf
        A setting of Spark, spark.NAME=VALUE, as for spark-submit; repeat it for more.
    dry_run
        Show how much would be read, change nothing.
    """

    reset: bool = False
    high_watermark: str | None = None
    engine: str = "auto"
    master: str | None = None
    spark_conf: Sequence[str] = ()
    dry_run: bool = False


def compact_topic(
    directories: output.Directories = (),
    /,
    *,
    flags: CompactTopicFlags = CompactTopicFlags(),
    json_: output.Json = False,
) -> int:
    """Compact a topic side by side, as pulsar compact-topic does.

    Writes a ledger with the last record of each key, which readers of the compacted view get instead of the
    log; the log stays as it is. Locks the directory, as a broker does.

    Parameters
    ----------
    directories
        The log directories, also as --dir.
    json_
        Print one JSON document.
    """
    flags = flags.at(directories)
    topic = flags.required_topic()
    no_other_replica = high_watermark_is_end(flags.high_watermark)
    output.refuse_if(
        flags.reset and flags.dry_run, "--reset and --dry-run exclude each other", "leave out one of them"
    )
    done = compaction.compact_topic(
        flags.broker_directories(),
        topic,
        _engine_for(flags.engine, flags.master, parse_spark_conf(flags.spark_conf)),
        reset=flags.reset,
        no_other_replica=no_other_replica,
        dry_run=flags.dry_run,
    )
    return _show_compaction(done, dry_run=flags.dry_run, as_json=json_)


def _engine_for(
    engine: str = "auto", master: str | None = None, settings: Mapping[str, str] | None = None
) -> compaction.EngineFor:
    """A function that makes the engine for a compaction of so many bytes: Spark, or this process, as
    ``uses_spark`` decides."""

    from siltstone.commands.clean import compaction_engine  # loads every engine: only where one is wanted

    def make(size: int) -> CompactionEngine:
        return compaction_engine(uses_spark(engine, master, lambda: size), master, settings)

    return make


def _show_compaction(done: compaction.TopicCompaction, *, dry_run: bool, as_json: bool) -> int:
    """Show what was done, or would be done; the exit status."""
    if as_json:
        output.write_json({"dry_run": dry_run, **done.to_json()})
    else:
        for partition in done.partitions:
            topic_partition = f"{done.topic}-{partition.partition}"
            output.write_lines(_compaction_text(topic_partition, partition, dry_run=dry_run))
    return _notes(done)


def _compaction_text(
    topic_partition: str, partition: compaction.PartitionCompaction, *, dry_run: bool
) -> str:
    """The line for a partition: what was compacted, or would be."""
    if dry_run and partition.failure:  # the notes say why
        return f"{topic_partition}: would not be compacted"
    if dry_run:
        first = 0 if partition.compacted is None else partition.compacted.horizon
        size = size_text(partition.backlog or 0)
        return f"{topic_partition}: would be compacted from offset {first} on: {size}"
    if partition.result is None:
        return f"{topic_partition}: {partition.status.status}"
    if not partition.result.changed:
        nothing = f"nothing new below offset {partition.result.horizon}"
        return f"{topic_partition}: {partition.status.status}: {nothing}"
    result = partition.result
    records = counted(result.read_records, "record")
    return (
        f"{topic_partition}: {partition.status.status}: {records} up to offset {result.horizon - 1:,}: "
        f"{counts_text(result)}; "
        f"ledger {result.ledger_id}: {counted(result.entries, 'entry', 'entries')}, "
        f"{size_text(result.size)}"
    )


def _show_status(topic: compaction.TopicCompaction, *, as_json: bool) -> int:
    """Show the state of a topic's compactions; the exit status."""
    if as_json:
        output.write_json(topic.to_json())
        return _notes(topic)
    output.write_lines(f"{topic.topic}: {topic.status.status}")
    output.write_lines(f"compactionThreshold: {topic.threshold.size} ({topic.threshold.source})")
    rows = []
    for partition in topic.partitions:
        ledger = partition.compacted
        facts = (ledger.horizon - 1, ledger.id, ledger.entries, ledger.size) if ledger else (None,) * 4
        rows.append((str(partition.partition), partition.status.status, *facts, partition.backlog))
    output.write_table("", _COMPACTION_COLUMNS, rows, left=2)
    return _notes(topic)


def _notes(topic: compaction.TopicCompaction) -> int:
    """Print notes and failures on standard error; the exit status, 1 if there is a failure."""
    output.note(*topic.notes)
    for partition in topic.partitions:
        topic_partition = f"{topic.topic}-{partition.partition}"
        failures = dict.fromkeys(filter(None, (partition.status.last_error, partition.failure)))
        output.note(
            *(
                failure if failure.startswith(topic_partition) else f"{topic_partition}: {failure}"
                for failure in failures
            )
        )
    return 1 if any(part.failure or part.status.status == ERROR for part in topic.partitions) else 0
