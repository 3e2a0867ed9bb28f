"""``siltstone hand-over``: writes what a real Kafka needs to start on log directories that Siltstone has
served."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from siltstone.broker.hand_over import NEWEST_RELEASE, HandOver, HandOverRequest
from siltstone.broker.hand_over import hand_over as write_hand_over
from siltstone.cli import output
from siltstone.commands.explain_page import counted


@dataclass(frozen=True, kw_only=True)
class HandOverFlags(output.DirFlags):
    """The flags of ``siltstone hand-over``.

    Parameters
    ----------
    release
        The release of the Kafka that is to start: 4.0, 4.1, 4.2 or 4.3. A later release starts on what any
        of them gets.
    broker_config
        The server.properties of the Kafka that is to start, whose log.dirs are handed over.
    move_metadata_to
        A new folder, on the same file system and outside of the log directories, for the metadata log that
        an earlier Kafka has left in the directories. The ACLs, users and quotas in it are not handed over.
    dry_run
        Show what would be handed over, change nothing.
    """

    release: str = NEWEST_RELEASE
    broker_config: Path | None = None
    move_metadata_to: Path | None = None
    dry_run: bool = False


def hand_over(
    directories: output.Directories = (),
    /,
    *,
    flags: HandOverFlags = HandOverFlags(),
    json_: output.Json = False,
) -> int:
    """Write bootstrap.checkpoint, so that a real Kafka (KRaft, 4.0 and later) starts on directories that
    siltstone has served, with their topics, ids, settings, quotas, offsets and producer ids.

    Pass all log.dirs; siltstone must have stopped cleanly. The server.properties of that Kafka need the
    node.id of meta.properties, and controller.quorum.voters; kafka-storage format is not needed.

    Parameters
    ----------
    directories
        The log directories, also as --dir; the first one gets the file.
    json_
        Print one JSON document.
    """
    flags = flags.at(directories)
    result = write_hand_over(
        HandOverRequest(
            directories=flags.broker_directories(flags.broker_config),
            release=flags.release,
            move_metadata_to=flags.move_metadata_to,
            dry_run=flags.dry_run,
        )
    )
    if json_:
        output.write_json(result.to_json())
    else:
        _show(result)
    return 0


def _show(result: HandOver) -> None:
    verb = "would be written (dry run: nothing was changed)" if result.dry_run else "written"
    output.write_lines(
        f"{result.path}: {verb}, for Kafka {result.release}",
        f"node.id={result.node_id}, cluster.id={result.cluster_id}",
        f"{counted(result.topics, 'topic')}, {counted(result.partitions, 'partition')}, "
        f"{counted(result.settings, 'setting')}, {counted(result.quotas, 'quota')}; "
        f"the next producer id is {result.next_producer_id}",
    )
    if result.moved is not None:
        output.write_lines(
            f"the old metadata log {'would go to' if result.dry_run else 'is now'} {result.moved}"
        )
    output.note(
        *(f"{name}: had no id, and gets one" for name in result.new_ids),
        *(f"{setting}: is a setting of Siltstone only, left out" for setting in result.left_out),
    )
