"""``Broker``: what the handlers of requests get of the directories that the server has open.

::

    handler ─► log_of, topic_of_id, …       at once, from caches: in the loop's thread
            ─► await in_pool(function, …)   whatever waits for a disk or takes long: in the broker's threads
            ─► await waiting.until_bytes    a fetch that waits

Changes of topics and settings go through ``commands.administration``, with ``served``.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop, Future
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from siltstone.base.clock import Clock
from siltstone.base.closing import Closing
from siltstone.base.codec_table import CODECS
from siltstone.base.config import Config, LogConfig
from siltstone.base.errors import StorageError
from siltstone.base.records.scan import scan_headers
from siltstone.broker.counts import Counts
from siltstone.broker.producer_ids import ProducerIds
from siltstone.broker.sessions import FetchSessions
from siltstone.broker.waiting import WaitingFetches
from siltstone.broker.wire.fields import ZERO_ID
from siltstone.commands.served import Served
from siltstone.log.names import TopicPartition
from siltstone.log.partition import PartitionLog
from siltstone.log.validation import validate_and_assign
from siltstone.runtime.producing import NewRecord, batch_of

if TYPE_CHECKING:
    from siltstone.broker.answers import Call

THREADS = 4
"""Threads for what waits or takes long; kernels and system calls let them run beside the loop's."""
MANY_PARTITIONS = 200
"""A request about more partitions takes over a millisecond, so it is answered in the pool."""
Result = TypeVar("Result")


def load_kernels() -> None:
    """Load the compiled functions of appends and searches. It takes half a second, for which the first
    request would wait in the loop's thread, and all others with it."""
    for codec in CODECS:
        batch = batch_of([NewRecord(value=b"value", timestamp=0)], codec.name, 0)
        validated = validate_and_assign(batch, config=LogConfig(), next_offset=0, now_ms=0, leader_epoch=0)
        scan_headers(validated.data, len(validated.data))


class Broker(Closing):
    """One broker. ``manager``: the open logs; ``config``: the broker's settings now; ``node_id`` and
    ``cluster_id``: those in ``meta.properties``; ``waiting`` and ``fetch_sessions``: the parked fetches and
    the sessions of clients, for the loop's thread only; ``counts``: what was asked and moved.
    """

    def __init__(self, served: Served, loop: AbstractEventLoop) -> None:
        """A broker over open directories. Raises NotAllowedError in look mode."""
        self.served, self.manager, self.loop = served, served.opened(), loop
        self.clock: Clock = served.clock
        self.waiting, self.counts = WaitingFetches(loop), Counts()
        self.fetch_sessions = FetchSessions()
        self._producer_ids = ProducerIds(self.manager)
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="siltstone-broker")
        self._pool.submit(load_kernels)
        self._pool.submit(lambda: self.manager.topics.ids)  # of a Kafka's topics each is in a file
        self._logs: dict[tuple[str, int], PartitionLog] = {}
        properties = self.manager.serving()[0].directory.properties()
        self.node_id = int(properties.get("node.id") or properties.get("broker.id") or 0)
        self.cluster_id = properties.get("cluster.id", "")

    @property
    def config(self) -> Config:
        """The broker's settings now."""
        return self.manager.config

    def in_pool(self, function: Callable[..., Result], *arguments: object) -> Future[Result]:
        """Call a function in one of the broker's threads: await the result, or what it raises."""
        return self.loop.run_in_executor(self._pool, function, *arguments)

    def log_of(self, topic: str, partition: int) -> PartitionLog:
        """The log of a partition. In any thread. Raises UnknownTopicError; StorageError if it is not served
        now."""
        log = self._logs.get((topic, partition))
        if log is None or not log.is_open:
            self._logs.pop((topic, partition), None)
            log = self.manager.get(TopicPartition(topic, partition))
            if not log.is_open:
                reason = f"the log is not served: {log.offline or 'it is closed'}"
                raise StorageError(reason, path=str(log.topic_partition))
            self._logs[topic, partition] = log
        return log

    def note_failure(self, log: PartitionLog) -> None:
        """A request of a log has failed: if that took it offline, its directory goes offline, too, at once.
        In any thread."""
        if log.offline is not None:
            self._pool.submit(self.manager.upkeep.take_failed_offline)

    def topic_of_id(self, topic_id: bytes) -> str | None:
        """The name of a topic by the 16 bytes of its id; None if there is none."""
        return self.manager.topics.names_by_id.get(topic_id)

    def id_of_topic(self, name: str) -> bytes:
        """The 16 bytes of a topic's id, ``ZERO_ID`` for a topic without an id and for an unknown one."""
        return self.manager.topics.ids.get(name, ZERO_ID)

    def host_and_port(self, call: Call) -> tuple[str, int]:
        """The address that the listener of the call's connection advertises."""
        listener = call.connection.listener
        return listener.host, listener.port

    def producer_id_at_hand(self) -> int | None:
        """A new producer id; None if one takes ``next_producer_id``, in the pool."""
        return self._producer_ids.take_at_hand()

    def next_producer_id(self) -> int:
        """A new producer id, durably given. It may write a file: for any thread but the loop's. Raises
        StorageError."""
        return self._producer_ids.take()

    def close(self) -> None:
        """Answer the parked fetches, and wait for what the threads do."""
        self.waiting.close()
        self._pool.shutdown()
