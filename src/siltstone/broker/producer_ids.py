"""The ids that a broker gives to producers, each once and for ever (Kafka's ``ProducerIdControlManager``).

Ids are given from blocks. A block is written to ``siltstone-broker.json`` in the root of every log directory
before its first id is given; what is left of it when the process ends is never given::

    {"version": 1, "next_producer_id": 4000}        the first id of the next block

The copy with the largest id counts: a directory that was offline has an older one. The first block of a start
also begins above every producer id in the logs and above what the metadata log of a Kafka broker has given.
An id in a log that no broker comes to, because a client made it up, does not count: otherwise one batch could
use up all ids.

If a copy is damaged, blocks may have been given that no log shows. So the next one begins far above.
"""

from __future__ import annotations

import json
import logging
import threading
from pathlib import Path

import msgspec

from siltstone.base import files
from siltstone.base.errors import CorruptFileError, StorageError
from siltstone.log.partition import DISK_FULL_ERRORS
from siltstone.runtime.manager import LogManager
from siltstone.runtime.served_directory import NO_DIRECTORY, OPEN_AGAIN

BROKER_FILE = "siltstone-broker.json"
BLOCK = 1000
"""Ids of a block, as in Kafka (``ProducerIdsBlock.PRODUCER_ID_BLOCK_SIZE``)."""
LARGEST_ID = 1 << 62
"""Ids from here on are not given, and do not count where they are found."""
_SKIPPED = 1 << 40
"""How many ids are skipped if a file is damaged: a broker that gives a million blocks a day needs three years
for them."""
_FILE_BYTES_MAX = 1 << 16
_logger = logging.getLogger("siltstone")


class _BrokerFile(msgspec.Struct, frozen=True, kw_only=True, tag_field="version", tag=1):
    next_producer_id: int


def read_next_producer_id(directory: Path) -> int | None:
    """The first id of the next block by a directory's file, None without one. Raises CorruptFileError,
    OSError."""
    path = directory / BROKER_FILE
    try:
        content = msgspec.json.decode(files.read_bytes(path, _FILE_BYTES_MAX), type=_BrokerFile)
        if not 0 <= content.next_producer_id <= LARGEST_ID:
            raise ValueError(f"next_producer_id {content.next_producer_id} is not in [0, {LARGEST_ID}]")
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as error:
        reason = f"the file does not say which producer ids were given: {error}"
        raise CorruptFileError(
            str(path), 0, reason, advice="nothing is to be done: ids are skipped"
        ) from None
    return content.next_producer_id


def _largest_in_logs(manager: LogManager) -> int:
    """The largest id that a producer in one of the logs has, -1 without one."""
    ids = (log.largest_producer_id(LARGEST_ID) for _, log in manager.logs())
    return max(ids, default=-1)


class ProducerIds:
    """Gives producer ids. For any thread."""

    def __init__(self, manager: LogManager) -> None:
        self._manager = manager
        self._lock = threading.Lock()
        self._next = self._end = 0
        self._next_block: int | None = None

    def take_at_hand(self) -> int | None:
        """An id, for a thread that must not wait; None if ``take`` would write a file, or does so now."""
        if not self._lock.acquire(blocking=False):
            return None
        try:
            return self._take() if self._next < self._end else None
        finally:
            self._lock.release()

    def take(self) -> int:
        """An id, from a new block if need be, which is durable then. Raises StorageError."""
        with self._lock:
            if self._next == self._end:
                self._begin_block()
            return self._take()

    def _take(self) -> int:
        self._next += 1
        return self._next - 1

    def _begin_block(self) -> None:
        if self._next_block is None:
            self._next_block = self._find_next_block()
        first, end = self._next_block, self._next_block + BLOCK
        if end > LARGEST_ID:
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
        if not self._manager.serving():
            raise StorageError(NO_DIRECTORY, advice=OPEN_AGAIN)
        self._next, self._end, self._next_block = first, end, end

    def _find_next_block(self) -> int:
        """The first id of the first block of this process. Raises StorageError."""
        first, is_damaged = _largest_in_logs(self._manager) + 1, False
        if self._manager.topics.given_ids_end <= LARGEST_ID:
            first = max(first, self._manager.topics.given_ids_end)
        for served in self._manager.serving():
            try:
                with served.offline_on_error():
                    first = max(first, read_next_producer_id(served.path) or 0)
            except CorruptFileError as error:
                _logger.warning("%s", error)
                is_damaged = True
        return first + _SKIPPED if is_damaged else first
