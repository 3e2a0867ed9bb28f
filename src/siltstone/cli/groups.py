"""``siltstone groups``: consumer groups, their members, offsets and lag, without a broker."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from siltstone.cli import output
from siltstone.commands import groups as commands
from siltstone.commands.groups import ConsumerGroup
from siltstone.log.dump import printable

if TYPE_CHECKING:
    from siltstone.commands.remote import RemoteBroker

_OFFSET_COLUMNS = "GROUP TOPIC PARTITION CURRENT-OFFSET LOG-END-OFFSET LAG CONSUMER-ID HOST CLIENT-ID"
_MEMBER_COLUMNS = "GROUP CONSUMER-ID GROUP-INSTANCE-ID HOST CLIENT-ID #PARTITIONS"
_STATE_COLUMNS = "GROUP TYPE ASSIGNMENT-STRATEGY STATE #MEMBERS"


@dataclass(frozen=True, kw_only=True)
class GroupsFlags(output.DirFlags, output.ServerFlags):
    """The flags of ``siltstone groups``.

    Parameters
    ----------
    list_
        List the names of the groups; with --state also their types and states.
    describe
        Describe the groups: offsets and lag, or with --members their members, with --state their states. The
        default.
    group
        Only this group; repeat it for more.
    all_groups
        All groups. The default.
    offsets
        With --describe: offsets and lag of each partition. The default.
    members
        With --describe: the members of the groups.
    verbose
        With --members: also the partitions that each member has.
    state
        Types and states of the groups.
    """

    list_: Annotated[bool, Parameter(name="--list")] = False
    describe: bool = False
    group: Sequence[str] = ()
    all_groups: bool = False
    offsets: bool = False
    members: bool = False
    verbose: bool = False
    state: bool = False

    def shows_offsets(self, *, as_json: bool) -> bool:
        """Are offsets shown?"""
        return as_json or not (self.list_ or self.members or self.state)

    def refuse_contradictions(self) -> None:
        """Raises UsageError for contradictions."""
        output.refuse_if(self.list_ and self.describe, "--list and --describe exclude each other", "pass one")
        output.refuse_if(
            self.group and self.all_groups, "--group and --all-groups exclude each other", "pass one of them"
        )
        only_described = self.offsets or self.members
        output.refuse_if(
            self.list_ and only_described, "--list has no --offsets and no --members", "pass --describe"
        )
        several = self.offsets + self.members + self.state > 1
        output.refuse_if(several, "--offsets, --members and --state exclude each other", "pass one of them")
        output.refuse_if(self.verbose and not self.members, "--verbose without --members", "pass both")


def groups(
    directories: Sequence[Path] = (),
    /,
    *,
    flags: GroupsFlags = GroupsFlags(),
    json_: output.Json = False,
) -> int:
    """Show consumer groups, their members, offsets and lag, as kafka-consumer-groups does.

    Reads __consumer_offsets and the ends of the logs that the groups have offsets in. Locks nothing and
    changes nothing; a broker may be running. A log end offset that is not known is "-". Exit status 1 when
    something cannot be read; the rest is shown.

    Parameters
    ----------
    directories
        Log directories, all of one broker.
    json_
        Print one JSON document instead, with offsets and members.
    """
    flags = flags.at(directories)
    flags.refuse_contradictions()
    broker = flags.remote()
    shown, failures, notes = (
        _of_directories(flags, as_json=json_) if broker is None else _of_broker(broker, flags, as_json=json_)
    )
    if json_:
        output.write_json({"groups": [group.to_json() for group in shown], "failures": failures})
    elif flags.list_ and not flags.state:
        output.write_lines(*(printable(group.name) for group in shown))
    elif flags.list_ or flags.state:
        _write_table(_STATE_COLUMNS, map(_state_row, shown))
    else:
        notes += _write_groups(shown, flags)
    output.note(*notes, *map(printable, failures))
    return 1 if failures else 0


_Shown = tuple[list[ConsumerGroup], list[str], list[str]]
"""Groups, a line for each thing that cannot be read, notes."""


def _of_broker(broker: RemoteBroker, flags: GroupsFlags, *, as_json: bool) -> _Shown:
    from siltstone.commands import remote_groups

    shown, failures = remote_groups.read_groups(broker, flags.group)
    if flags.shows_offsets(as_json=as_json):
        ends, unread = remote_groups.log_ends(broker, shown)
        shown, failures = commands.with_ends(shown, ends.get), failures + unread
    return shown, failures, []


def _of_directories(flags: GroupsFlags, *, as_json: bool) -> _Shown:
    snapshot = flags.broker_directories().snapshot()
    shown, failures = commands.read_groups(snapshot, flags.group)
    notes = snapshot.notes
    if not any(name.topic == commands.OFFSETS_TOPIC for name in snapshot.partitions):
        missing = f"no partition of {commands.OFFSETS_TOPIC} is in these directories"
        notes.append(f"{missing}: name all log.dirs of the broker")
    if flags.shows_offsets(as_json=as_json):
        shown, unread = commands.with_log_ends(snapshot, shown)
        failures += unread
        notes += commands.partitions_elsewhere(snapshot, shown)
    return shown, failures, notes


def _write_groups(groups: Sequence[ConsumerGroup], flags: GroupsFlags) -> list[str]:
    """A table for each group; returns a note for each group that has nothing to show."""
    notes, has_table_above = [], False
    what, columns = ("active members", _MEMBER_COLUMNS) if flags.members else ("offsets", _OFFSET_COLUMNS)
    for group in groups:
        rows = [*(_member_rows(group, verbose=flags.verbose) if flags.members else _offset_rows(group))]
        if not rows:  # in the words of Kafka's tool
            notes.append(f"Consumer group '{printable(group.name)}' has no {what}.")
            continue
        if has_table_above:
            output.write_lines("")
        _write_table(f"{columns} ASSIGNMENT" if flags.verbose else columns, rows)
        has_table_above = True
    return notes


def _write_table(columns: str, rows: Iterable[Sequence[object]]) -> None:
    """Columns as wide as what is in them, as Kafka's tool prints them; None and "" are "-"."""
    cells = [("-" if cell in (None, "") else printable(str(cell)) for cell in row) for row in rows]
    table = [columns.split(), *map(list, cells)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        line = " ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        output.write_lines(line.rstrip())


def _offset_rows(group: ConsumerGroup) -> Iterable[Sequence[object]]:
    members = {member.member_id: member for member in group.members}
    for offset in group.offsets:
        topic_partition = offset.topic_partition
        topic, partition = topic_partition.topic, topic_partition.partition
        member = members.get(offset.member_id or "")
        numbers = (offset.current_offset, offset.log_end_offset, offset.lag)
        host, client = (member.host, member.client_id) if member else (None, None)
        yield group.name, topic, partition, *numbers, offset.member_id, host, client


def _member_rows(group: ConsumerGroup, *, verbose: bool) -> Iterable[Sequence[object]]:
    for member in group.members:
        numbers_by_topic = output.grouped(
            (topic_partition.topic, topic_partition.partition) for topic_partition in member.assigned
        )
        assignment = ",".join(f"{topic}({','.join(numbers)})" for topic, numbers in numbers_by_topic.items())
        names = (group.name, member.member_id, member.instance_id, member.host, member.client_id)
        yield *names, len(member.assigned), *([assignment] if verbose else [])


def _state_row(group: ConsumerGroup) -> Sequence[object]:
    return group.name, group.type, group.protocol, group.state, len(group.members)
