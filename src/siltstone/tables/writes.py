"""What jobs have written to a directory: ``siltstone-writes.json`` in its root, passed over by a broker.

::

    {"version": 1, "writes": [{"id": "backfill-7", "epoch": 3, "done": true, "at_ms": 1795000000000,
                               "ranges": {"users-0": [100, 250]}, "staged": []}]}

An entry that is not ``done`` is the commit point of its write: it is durable before the first batch is
appended, and holds where each log ended then and which staged files are to be in it. Whoever writes to the
directory next finishes it, so nothing stays half. An entry that is done tells a job that runs again with the
same id that its records are there. One entry an id: of a stream its newest epoch, since epochs ascend.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from siltstone import files
from siltstone.errors import CorruptFileError
from siltstone.log.names import TopicPartition, parse_partition
from siltstone.tables.staged import StagedFile

WRITES_FILE = "siltstone-writes.json"
MOST_KEPT = 1000
"""Ids that are remembered; the oldest go first."""
_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """One write. ``ranges``: by partition the log's end before it, and behind it; ``at_ms``: when it began.

    ``epoch``: of a stream's batches, ascending; 0 for a job. ``is_named``: whoever wrote can say the same id
    again, so it is remembered. ``staged``: what is to be appended, in this order, empty once it is ``done``.
    """

    write_id: str
    epoch: int = 0
    is_named: bool = True
    done: bool = False
    at_ms: int = 0
    ranges: Mapping[TopicPartition, tuple[int, int]]
    staged: tuple[StagedFile, ...] = ()

    @property
    def records(self) -> int:
        """How many were, or are to be, appended."""
        return sum(behind - before for before, behind in self.ranges.values())

    def as_data(self) -> dict[str, Any]:
        """For the file."""
        return {
            "id": self.write_id,
            "epoch": self.epoch,
            "named": self.is_named,
            "done": self.done,
            "at_ms": self.at_ms,
            "ranges": {str(where): list(each) for where, each in sorted(self.ranges.items())},
            "staged": [each.as_data() for each in self.staged],
        }

    @classmethod
    def of_data(cls, data: Mapping[str, Any]) -> Write:
        """The other way round. Raises KeyError, TypeError, ValueError."""
        ranges = {}
        for name, (before, behind) in data["ranges"].items():
            where = parse_partition(name)
            if where is None:
                raise ValueError(f"{name} is no partition")
            ranges[where] = (int(before), int(behind))
        return cls(
            write_id=str(data["id"]),
            epoch=int(data["epoch"]),
            is_named=bool(data["named"]),
            done=bool(data["done"]),
            at_ms=int(data["at_ms"]),
            ranges=ranges,
            staged=tuple(StagedFile.of_data(each) for each in data["staged"]),
        )


def load_writes(root: Path) -> list[Write]:
    """The writes of a directory, the oldest first; none where there is no file. Raises CorruptFileError."""
    path = root / WRITES_FILE
    try:
        raw = files.read_bytes(path)
    except FileNotFoundError:
        return []
    try:
        found = json.loads(raw)
        if found["version"] != _VERSION:
            raise ValueError(f"version {found['version']}; only {_VERSION} is known")
        return [Write.of_data(each) for each in found["writes"]]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptFileError(
            str(path),
            0,
            f"no list of writes ({error}); without it a repeated job cannot be told from a new one: "
            "put an older copy back, or remove it when no job will be repeated",
        ) from None


def find_write(writes: list[Write], write_id: str, epoch: int) -> Write | None:
    """The write that this one repeats: of its id, with its epoch or a later one."""
    return next((each for each in writes if each.write_id == write_id and each.epoch >= epoch), None)


def store_write(root: Path, writes: list[Write], write: Write) -> list[Write]:
    """Put ``write`` in the place of an earlier one of its id, durably; the list then. Raises OSError."""
    others = [each for each in writes if each.write_id != write.write_id]
    kept = [each for each in others if each.is_named or not each.done]
    return _store(root, [*kept[-MOST_KEPT + 1 :], write])


def forget_write(root: Path, writes: list[Write], write: Write) -> list[Write]:
    """Take an entry away, durably: nothing of it is in the logs. Raises OSError."""
    return _store(root, [each for each in writes if each.write_id != write.write_id])


def _store(root: Path, writes: list[Write]) -> list[Write]:
    found = {"version": _VERSION, "writes": [each.as_data() for each in writes]}
    files.replace(root / WRITES_FILE, (json.dumps(found) + "\n").encode())
    return writes
