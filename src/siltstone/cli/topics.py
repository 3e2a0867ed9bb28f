"""``siltstone topics``: topics of log directories, as kafka-topics has them; ``topics compact`` and ``topics
compaction-status`` as pulsar-admin has them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Annotated

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
from siltstone.commands.places import Place
from siltstone.commands.topics import (
    PartitionFacts,
    TopicChange,
    add_partitions,
    create_topic,
    delete_topics,
    found_topics,
    partitions_of,
    texts_of,
)
from siltstone.runtime.topics import TopicDescription

_ACTIONS = ("create", "list", "describe", "alter", "delete")
_WORDS = ("compact", "compaction-status")
_INTERVAL_SECONDS = 0.25
_COLUMNS = ("partition", "directory", "log start", "log end", "high watermark", "bytes", "segments")


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class TopicsFlags(TopicFlags):
    """The flags of ``siltstone topics``.

    Parameters
    ----------
    create
        Make the topic; the directory too where it is not there.
    list_
        The topics' names.
    describe
        Topics with their settings and partitions.
    alter
        Give topics more --partitions.
    delete
        Delete topics; their room is free at once.
    topic
        A topic; for all but --create also a regular expression.
    partitions
        How many; for a new topic num.partitions unless said.
    replication_factor
        1: a directory holds one replica.
    config
        A setting of the new topic, key=value, [a,b] for a list; may be given several times.
    if_exists
        A topic that is not there is no error.
    if_not_exists
        A topic that is there already is no error.
    server_properties
        The broker's own settings, for defaults.
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
        """The one thing that is to be done. Raises UsageError for flags that do not go together."""
        chosen = [name for name in _ACTIONS if getattr(self, "list_" if name == "list" else name)]
        chosen += [] if word is None else [word]
        if len(chosen) != 1 or chosen[0] not in (*_ACTIONS, *_WORDS):
            flags = ", ".join(f"--{name}" for name in _ACTIONS)
            raise UsageError(f"choose one of {flags}, or topics {' or topics '.join(_WORDS)}")
        self._refuse_strange(chosen[0])
        return chosen[0]

    def _refuse_strange(self, action: str) -> None:
        if self.topic is None and action in ("create", "alter", "delete", *_WORDS):
            raise UsageError(f"{_said(action)}: say which --topic")
        if action == "alter" and self.partitions is None:
            raise UsageError(
                "--alter: give --partitions; settings are changed with siltstone configs --alter"
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
            if getattr(self, name) not in (None, (), False) and action not in actions:
                flag = name.replace("_", "-")
                raise UsageError(f"--{flag} goes with {' or '.join(map(_said, actions))}")
        if self.replication_factor not in (None, 1, -1):
            raise UsageError(
                f"--replication-factor {self.replication_factor}: a directory holds one replica; give 1 "
                "(INVALID_REPLICATION_FACTOR)"
            )


def _said(action: str) -> str:
    return action if action in _WORDS else f"--{action}"


def topics(
    word: str | None = None,
    topic: str | None = None,
    /,
    *,
    flags: TopicsFlags | None = None,
    json_: Json = False,
) -> int:
    """List, describe, make, change, delete and compact the topics of log directories, as kafka-topics does.

    --list, --describe and compaction-status lock nothing and change nothing: they work beside a live broker.
    The others lock the directory, as a broker does.

    Parameters
    ----------
    word
        compact: compact a topic beside its originals; compaction-status: what came of it. As in pulsar-admin.
    topic
        The topic for these, also as --topic; by its name here or as persistent://tenant/namespace/name.
    json_
        Print one JSON document instead.
    """
    flags = flags or TopicsFlags()
    place = place_of(flags.dir, flags.server_properties)
    if topic is not None:
        if flags.topic is not None or word not in _WORDS:
            raise UsageError(f"{topic}: say it once, behind topics {' or topics '.join(_WORDS)}")
        flags = replace(flags, topic=topic)
    action = flags.action(word)
    if action in _WORDS:
        return _compact(place, flags, as_json=json_) if action == "compact" else _watch(place, flags, json_)
    if action == "list":
        return _list(place, flags, as_json=json_)
    if action == "describe":
        return _describe(place, flags, as_json=json_)
    _show_changes(action, _change(place, action, flags), dry_run=flags.dry_run, as_json=json_)
    return 0


def _compact(place: Place, flags: TopicsFlags, *, as_json: bool) -> int:
    from siltstone.cli.compact_topic import engine_for, show_compaction
    from siltstone.commands.compaction import compact_topic

    found = compact_topic(place, flags.the_topic(), engine_for(flags.dir), dry_run=flags.dry_run)
    return show_compaction(found, dry_run=flags.dry_run, as_json=as_json)


def _watch(place: Place, flags: TopicsFlags, as_json: bool) -> int:
    from siltstone.cli.compact_topic import show_status
    from siltstone.commands.compaction import compaction_of

    found = compaction_of(place, flags.the_topic())
    while flags.wait_complete and found.is_running:
        time.sleep(_INTERVAL_SECONDS)
        found = compaction_of(place, flags.the_topic())
    return show_status(found, as_json=as_json)


def _change(place: Place, action: str, flags: TopicsFlags) -> list[TopicChange]:
    if action == "delete":
        return delete_topics(place, flags.the_topic(), if_exists=flags.if_exists, dry_run=flags.dry_run)
    if action == "alter":
        assert flags.partitions is not None
        return add_partitions(
            place, flags.the_topic(), flags.partitions, if_exists=flags.if_exists, dry_run=flags.dry_run
        )
    config = texts_of(flags.config, "--config")
    if place.snapshot_before_creation().has_brokers_metadata:
        note("a broker will not know of a topic that is made here: its topics are in its metadata log")
    return [
        create_topic(
            place,
            flags.the_topic(),
            flags.partitions,
            config,
            if_not_exists=flags.if_not_exists,
            dry_run=flags.dry_run,
        )
    ]


def _list(place: Place, flags: TopicsFlags, *, as_json: bool) -> int:
    snapshot = place.snapshot()
    found = found_topics(snapshot.names(), flags.topic, if_exists=True)
    if as_json:
        write_json({"topics": found})
    else:
        for name in found:
            write_line(name)
    return 0


def _describe(place: Place, flags: TopicsFlags, *, as_json: bool) -> int:
    snapshot = place.snapshot()
    names = found_topics(snapshot.names(), flags.topic, if_exists=flags.if_exists)
    described = [(topic, partitions_of(snapshot, topic)) for topic in map(snapshot.topic, names)]
    own = {topic.name: snapshot.own_texts(topic) for topic, _ in described}
    if as_json:
        write_json({"topics": [_document(each, own[each.name], parts) for each, parts in described]})
    else:
        for topic, partitions in described:
            _show_topic(topic, own[topic.name], partitions)
    note(*snapshot.notes, *snapshot.notes_on([topic for topic, _ in described]))
    failures = [(topic.name, each) for topic, partitions in described for each in partitions if each.failure]
    note(*(f"{name}-{each.partition}: {each.failure}" for name, each in failures))
    return 1 if failures else 0


def _document(
    topic: TopicDescription, own: Mapping[str, str], partitions: Sequence[PartitionFacts]
) -> dict[str, object]:
    return {
        "topic": topic.name,
        "topic_id": topic.topic_id,
        "partition_count": len(partitions),
        "replication_factor": 1,
        "configs": dict(own),
        "partitions": [_partition_document(each) for each in partitions],
    }


def _partition_document(partition: PartitionFacts) -> dict[str, object]:
    found = asdict(partition)
    del found["compacted"]
    return {**found, **(partition.compacted.to_json() if partition.compacted else {})}


def _show_topic(
    topic: TopicDescription, own: Mapping[str, str], partitions: Sequence[PartitionFacts]
) -> None:
    configs = ",".join(f"{name}={text}" for name, text in sorted(own.items()))
    write_line(
        f"Topic: {topic.name}\tTopicId: {topic.topic_id or 'none'}\tPartitionCount: {len(partitions)}\t"
        f"ReplicationFactor: 1\tConfigs: {configs}"
    )
    names = [each.name for each in fields(PartitionFacts) if each.name not in ("failure", "compacted")]
    rows = [(str(each.partition), *(getattr(each, name) for name in names[1:])) for each in partitions]
    write_table("", _COLUMNS, rows, left=2)
    for each in partitions:
        if each.compacted is not None:
            ledger = each.compacted
            write_line(
                f"  {topic.name}-{each.partition}: compacted up to offset {ledger.mark_delete_position}: "
                f"ledger {ledger.ledger_id}, {ledger.entries} entries, {ledger.size} bytes"
            )


def _show_changes(action: str, changes: Sequence[TopicChange], *, dry_run: bool, as_json: bool) -> None:
    if as_json:
        shown = [
            {name: value for name, value in asdict(each).items() if value is not None} for each in changes
        ]
        write_json({"action": action, "dry_run": dry_run, "topics": shown})
        return
    for each in changes:
        if each.status == "exists":
            write_line(f"topic {each.topic} exists already")
            continue
        what = f"{'would be ' if dry_run else ''}{each.status}"
        count = f" with {each.partitions} partitions" if action != "delete" else ""
        write_line(f"topic {each.topic} {what}{count}")
    if not changes:
        write_line("no such topic: nothing to do")
