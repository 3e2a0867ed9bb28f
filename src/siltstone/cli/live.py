"""``siltstone compact``: have a running Kafka's own cleaner compact a topic now."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from siltstone.cli import output
from siltstone.commands import live
from siltstone.log.checkpoints import read_properties


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class CompactFlags:
    """The flags of ``siltstone compact``.

    Parameters
    ----------
    bootstrap_server
        HOST:PORT of a broker, as for Kafka's tools. With --restore, by default the one in the journal.
    topic
        The topic to compact.
    command_config
        A file of the client's properties, as librdkafka names them, such as security.protocol.
    log_dir
        A log directory of the broker, if it can be read here: its cleaner checkpoint shows when a partition
        is clean; repeat it for more. Records of other partitions are consumed, again and again, to see it.
    timeout
        Seconds to wait at most. The settings are restored then, too.
    journal
        The file that the old settings are kept in meanwhile. By default in the user's state directory.
    restore
        Only restore what a run that was killed has left.
    dry_run
        Show the settings that would be set and what there is to clean; change nothing.
    """

    bootstrap_server: str | None = None
    topic: Annotated[str | None, Parameter(alias="-t")] = None
    command_config: Path | None = None
    log_dir: tuple[Path, ...] = ()
    timeout: float = 600.0
    journal: Path | None = None
    restore: bool = False
    dry_run: bool = False

    def refuse_contradictions(self) -> None:
        """Raises UsageError for contradictions."""
        restores = self.restore
        output.refuse_if(restores and self.dry_run, "--restore and --dry-run exclude each other", "pass one")
        output.refuse_if(
            restores and self.topic is not None, "--restore takes no --topic", "pass one of them"
        )
        missing = not restores and (self.topic is None or self.bootstrap_server is None)
        output.refuse_if(missing, "--bootstrap-server or --topic is missing", "pass both, or --restore")
        output.refuse_if(not 0 < self.timeout < 1e9, "--timeout is out of range", "pass seconds over 0")


def compact(*, flags: CompactFlags = CompactFlags(), json_: output.Json = False) -> int:
    """Compact a topic of a running Kafka now, and wait for it.

    Sets temporary settings of the topic by the broker's admin API, waits for its log cleaner, and restores
    the settings whatever happens. Appends nothing: what is in an active segment stays, until a
    client appends. Exit status 1 if there was still something to clean when the time was over.

    Parameters
    ----------
    json_
        Print one JSON document instead.
    """
    flags.refuse_contradictions()
    journal = (flags.journal or live.default_journal()).absolute()
    if flags.restore:
        return _restore(flags, journal, json_=json_)
    server, topic = flags.bootstrap_server or "", flags.topic or ""
    result = live.compact(
        _admin(flags, server),
        topic,
        bootstrap_server=server,
        journal=journal,
        waiting=live.Waiting(timeout=flags.timeout, log_dirs=flags.log_dir),
        dry_run=flags.dry_run,
    )
    if json_:
        output.write_json(result)
    else:
        _write(result)
    _note(*result.restored)
    timed_out = any(partition.status == live.TIMED_OUT for partition in result.partitions)
    return 1 if timed_out and not flags.dry_run else 0


def _admin(flags: CompactFlags, server: str) -> live.Admin:
    from siltstone.commands.live_client import KafkaAdmin

    config = read_properties(flags.command_config) if flags.command_config else {}
    return KafkaAdmin(server, config)


def _restore(flags: CompactFlags, journal: Path, *, json_: bool) -> int:
    """Restore the settings that an earlier run has left in the journal; returns the exit status."""
    entry = live.read_journal(journal)
    restored = None
    if entry is not None:
        with live.locked(journal):
            restored = live.restore(_admin(flags, flags.bootstrap_server or entry.bootstrap_server), journal)
    if json_:
        output.write_json({"restored": [] if restored is None else [restored]})
    elif restored is None:
        output.write_lines("nothing to restore")
    _note(*([] if restored is None else [restored]))
    return 0


def _note(*restored: live.Restored) -> None:
    """Say on standard error which settings were restored, and why others were kept."""
    for topic_restored in restored:
        names = ", ".join(topic_restored.restored)
        output.note(*([f"{topic_restored.topic}: restored {names}"] if names else []))
        output.note(*(f"{topic_restored.topic}: {line}" for line in topic_restored.kept))


def _write(result: live.Result) -> None:
    verb = "would set" if result.dry_run else "set"
    for change in result.changes:
        before = "inherited" if change.before is None else change.before
        output.write_lines(f"{verb} {change.name}={change.ours} for a time (own value: {before})")
    names = ("partition", "status", "cleaned to", "active from", "records", "superseded")
    rows = []
    for partition in result.partitions:
        records = superseded = ""
        if partition.before is not None and partition.after is not None:
            records = output.change_text(partition.before.records, partition.after.records)
            superseded = output.change_text(partition.before.superseded, partition.after.superseded)
        # A dry run does not wait: a partition with something to clean has the status of one that timed out.
        status = "to clean" if result.dry_run and partition.status == live.TIMED_OUT else partition.status
        rows.append(
            (
                partition.partition,
                status.replace("_", " "),
                partition.cleaned_to,
                partition.active_from,
                records,
                superseded,
            )
        )
    output.write_table(result.topic, names, rows, left=2)
