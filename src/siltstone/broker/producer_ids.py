"""Gives ids to idempotent producers, no id twice (Kafka's ``ProducerIdManager``, and the blocks of
``ProducerIdControlManager``).

Ids are given from blocks of 1,000. Before the first id of a block is given, the end of the block is written
to ``siltstone-broker.json`` in the root of every log directory, durably. So a process that starts later gives
none of the block again; what is left of it when the process ends is lost::

    {"version": 1, "next_producer_id": 4000}        the first id of the next block

The first block of a process begins at the largest of

1. ``next_producer_id`` in the files: they differ if a directory was offline when a block was written;
2. ``nextProducerId`` of the metadata log, if a Kafka has run on these directories;
3. the largest producer id in the logs, plus one. A client may have made up an id, and one batch with a huge
   one would use up all ids. So an id in a log counts only if it is less than ``_SKIPPED`` above the larger
   of the others; if there are none, or a file is damaged, only below half of ``PRODUCER_ID_END``. An id that
   does not count today counts once the ids that were given have come near it.

If a file is damaged, blocks may have been given that neither another file nor a log shows. Then the first
block begins ``_SKIPPED`` ids later.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec

from siltstone.base import files
from siltstone.base.decoded_types import decoded_in_threads
from siltstone.base.errors import CorruptFileError, StorageError
from siltstone.log.partition import DISK_FULL_ERRORS
from siltstone.runtime.manager import LogManager

BROKER_FILE = "siltstone-broker.json"
BLOCK = 1000
"""Ids of a block, as in Kafka (``ProducerIdsBlock.PRODUCER_ID_BLOCK_SIZE``)."""
PRODUCER_ID_END = 1 << 62
"""Ids from this one on are never given, and do not count if a log has them. It is so far below the largest
int64 that no sum of ids here exceeds that."""
_END_IN_LOGS = PRODUCER_ID_END // 2
"""The end of the ids in logs that count if a file is damaged, or if neither a file nor the metadata log says
which ids were given."""
_SKIPPED = 1 << 40
"""The number of ids that are skipped if a file is damaged, and by which an id in a log may exceed those that
were given: as many as a broker gives in three years, with a million blocks a day."""
_FILE_BYTES_MAX = 1 << 16
_logger = logging.getLogger("siltstone")


@decoded_in_threads
class _BrokerFile(msgspec.Struct, frozen=True, kw_only=True, tag_field="version", tag=1):
    next_producer_id: int


def read_next_producer_id(directory: Path) -> int | None:
    """The first id of the next block as a directory's file says; None if it has no such file. Raises
    CorruptFileError, OSError."""
    path = directory / BROKER_FILE
    try:
        content = msgspec.json.decode(files.read_bytes(path, _FILE_BYTES_MAX), type=_BrokerFile)
        if not 0 <= content.next_producer_id <= PRODUCER_ID_END:
            raise ValueError(f"next_producer_id {content.next_producer_id} is not in [0, {PRODUCER_ID_END}]")
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as error:
        reason = f"the file does not say which producer ids were given: {error}"
        raise CorruptFileError(
            str(path), 0, reason, advice="nothing is to be done: ids are skipped"
        ) from None
    return content.next_producer_id


def first_free_id(known: int, largest_in_logs: Callable[[int], int], *, is_damaged: bool = False) -> int:
    """The first id that certainly was not given. ``known``: the largest end of given ids that files and the
    metadata log say, 0 without them; ``largest_in_logs``: returns the largest id in the logs below its
    argument, -1 if there is none; ``is_damaged``: is a file damaged, so that it may have said more?"""
    below = known + _SKIPPED
    if is_damaged or not known:
        below = max(below, _END_IN_LOGS)
    first = max(known, largest_in_logs(min(below, PRODUCER_ID_END)) + 1)
    return first + _SKIPPED if is_damaged else first


class ProducerIds:
    """Gives producer ids. For any thread. ``_next`` to ``_end``, which is exclusive: what is left of the
    current block; ``_next_block``: the first id of the next one, None before the first block."""

    def __init__(self, manager: LogManager) -> None:
        self._manager = manager
        self._lock = threading.Lock()
        self._next = self._end = 0
        self._next_block: int | None = None

    def take_at_hand(self) -> int | None:
        """An id, for a thread that must not wait; None if the block is used up, or if another thread holds
        the lock, perhaps to write a new block."""
        if not self._lock.acquire(blocking=False):
            return None
        try:
            return self._take() if self._next < self._end else None
        finally:
            self._lock.release()

    def take(self) -> int:
        """An id. If the block is used up, a new one is written first. Raises StorageError."""
        with self._lock:
            if self._next == self._end:
                self._begin_block()
            return self._take()

    def _take(self) -> int:
        self._next += 1
        return self._next - 1

    def _begin_block(self) -> None:
        """Write the end of the next block to all directories, then give its ids. Raises StorageError."""
        if self._next_block is None:
            self._next_block = self._find_next_block()
        first, end = self._next_block, self._next_block + BLOCK
        if end > PRODUCER_ID_END:
            advice = "stop the broker, and restore the file from a backup"
            raise StorageError("all producer ids are given", path=BROKER_FILE, advice=advice)
        content = json.dumps({"version": 1, "next_producer_id": end}).encode() + b"\n"
        for served in self._manager.serving():
            try:
                files.replace(served.path / BROKER_FILE, content)
            except OSError as error:
                if error.errno in DISK_FULL_ERRORS:
                    reason = f"no producer id can be given: {error.strerror}"
                    raise StorageError(reason, path=served.path, advice="free space") from error
                served.go_offline(error)
        self._manager.require_serving()
        self._next, self._end, self._next_block = first, end, end

    def _find_next_block(self) -> int:
        """The first id of the first block of this process. Raises StorageError."""
        known, is_damaged = max(self._manager.topics.allocated_producer_ids_end, 0), False
        if known > PRODUCER_ID_END:  # made up, or damaged
            known = 0
        for served in self._manager.serving():
            try:
                with served.offline_on_error():
                    known = max(known, read_next_producer_id(served.path) or 0)
            except CorruptFileError as error:
                _logger.warning("%s", error)
                is_damaged = True
        return first_free_id(known, self._largest_in_logs, is_damaged=is_damaged)

    def _largest_in_logs(self, below: int) -> int:
        return max((log.largest_producer_id(below) for _, log in self._manager.logs()), default=-1)
