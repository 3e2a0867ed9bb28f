"""What is crashed: each workload prepares a log, then does what is recorded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.support.cleaning.logs import WHERE
from tests.support.crash.disk import Recording, recorded
from tests.support.crash.session import Session

SMALL = {
    "segment.bytes": "400",
    "index.interval.bytes": "100",
    "cleanup.policy": "delete",
    "retention.ms": "-1",
}
COMPACTED = {**SMALL, "cleanup.policy": "compact", "delete.retention.ms": "0", "min.compaction.lag.ms": "0"}
RETAINED = {**SMALL, "retention.bytes": "500", "retention.ms": "1000000"}


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What ``prepare`` does is whole on the disk before ``act`` begins."""

    prepare: Callable[[Session], None]
    act: Callable[[Session], None]
    settings: dict[str, str]


def _some(session: Session, batches: int = 4) -> None:
    for number in range(batches):
        session.append(1 + number % 3)


def _append_and_flush(session: Session) -> None:
    session.append(2)
    session.append(1, sync=True)
    session.append(2, producer=7)
    session.append(3)
    session.flush()
    session.append(2, producer=7)
    session.append(1, producer=7, sync=True)
    session.append(3)
    session.settle()
    session.append(2)
    session.close()


def _roll(session: Session) -> None:
    _some(session, 6)
    session.settle()
    session.append(2, producer=7, transactional=True)
    session.roll()
    session.settle()
    session.append(1, producer=8, transactional=True)
    session.end_transaction(7, commit=False)
    _some(session, 5)
    session.end_transaction(8, commit=True)
    session.roll()
    session.append(2, producer=7)
    session.settle()


def _retention(session: Session) -> None:
    _some(session, 8)
    session.retain()
    session.settle()
    _some(session, 3)
    session.retain(all_of_it=True)
    session.append(2, sync=True)
    session.append(1)
    session.close()


def _delete_records(session: Session) -> None:
    session.append(2, producer=7)
    session.delete_records(session.log.log_start_offset + 2)
    session.append(1)
    session.delete_records(session.log.log_end_offset)
    _some(session, 4)
    session.settle()
    session.checkpoint()
    session.retain()
    session.append(1)
    session.close()


def _clean(session: Session) -> None:
    session.append(2)
    session.clean()
    _some(session, 6)
    session.flush()
    session.checkpoint()
    session.clean()
    session.append(1)
    session.close()


def _embedded(session: Session) -> None:
    session.append(2)
    session.clean_embedded(unlink=False)
    _some(session, 16)
    session.flush()
    session.checkpoint()
    session.clean_embedded(unlink=False)
    session.clock.advance(100_000)
    session.clean_embedded(unlink=True, tombstones_only=True)
    session.append(1)
    session.close()
    session.open()
    session.append(1, sync=True)


def _checkpoints(session: Session) -> None:
    session.append(2)
    session.checkpoint()
    session.append(2, sync=True)
    session.checkpoint()
    _some(session, 5)
    session.delete_records(session.log.log_start_offset + 3)
    session.flush()
    session.checkpoint()
    session.append(1)
    session.close()
    session.open()
    session.append(1)


def _truncation(session: Session) -> None:
    session.retain()
    _some(session, 3)
    session.append(2, producer=7, transactional=True)
    session.end_transaction(7, commit=False)
    session.append(1, producer=7)
    session.flush()
    session.checkpoint()
    session.truncate(session.log.log_end_offset - 1)
    session.append(3)
    session.flush()
    session.checkpoint()
    session.truncate(session.log.view.segments[-2].base_offset)
    _some(session, 9)
    session.settle()
    session.append(2)
    session.restart(session.log.log_end_offset + 20)
    session.append(2)
    session.close()


def _recovery(session: Session) -> None:
    session.open()
    session.append(2)
    session.close()


def _prepared(session: Session) -> None:
    _some(session, 7)
    session.append(2, producer=7)
    session.append(1, sync=True)


def _stocked(session: Session) -> None:
    _some(session, 14)


def _stocked_for_groups(session: Session) -> None:
    """Two segments or so fit a group."""
    _some(session, 20)
    session.flush()
    session.manager.topics.alter(WHERE.topic, {"segment.bytes": "850", "min.cleanable.dirty.ratio": "0"})


def _torn(session: Session) -> None:
    """Stopped in the middle: a checkpoint that is behind, a batch in half, an index of nonsense."""
    _prepared(session)
    session.checkpoint()
    _some(session, 5)
    session.roll()
    session.append(2)
    session.append(3)
    session.kill()
    last, *_ = sorted(session.partition.glob("*.log"), reverse=True)
    last.write_bytes(last.read_bytes()[:-9])
    session.batches.pop()
    for index in session.partition.glob("*.index"):
        index.write_bytes(index.read_bytes() + b"nonsense")
    for index in session.partition.glob("*.timeindex"):
        index.unlink()


WORKLOADS = {
    "append and flush": Workload(prepare=_prepared, act=_append_and_flush, settings=SMALL),
    "roll": Workload(prepare=_prepared, act=_roll, settings=SMALL),
    "retention": Workload(prepare=_prepared, act=_retention, settings=RETAINED),
    "retention of a compacted log": Workload(
        prepare=_prepared, act=_retention, settings={**RETAINED, "cleanup.policy": "compact,delete"}
    ),
    "DeleteRecords": Workload(prepare=_prepared, act=_delete_records, settings=SMALL),
    "clean and swap": Workload(prepare=_stocked, act=_clean, settings=COMPACTED),
    "embedded cleaner": Workload(prepare=_stocked_for_groups, act=_embedded, settings=COMPACTED),
    "checkpoints": Workload(prepare=_prepared, act=_checkpoints, settings=SMALL),
    "truncation": Workload(prepare=_stocked, act=_truncation, settings=RETAINED),
    "recovery": Workload(prepare=_torn, act=_recovery, settings=SMALL),
}


def record(name: str, root: Path) -> Recording:
    """The disk's operations of one workload, with what was promised when."""
    workload = WORKLOADS[name]
    root.mkdir(parents=True)
    session = Session(root, workload.settings)
    workload.prepare(session)
    with recorded(root) as recording:
        session.recording = recording
        session.say_all("begin")
        workload.act(session)
    session.recording = None
    session.kill()
    return recording
