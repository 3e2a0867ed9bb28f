"""``Broker``: what request handlers use of the open log directories (the part of Kafka's ``ReplicaManager``
and ``MetadataCache`` that ``KafkaApis`` sees).

::

    handler ─► log_of, topic_of_id, …         in the loop's thread: from memory
            ─► await in_pool(function, …)     in the broker's thread pool: what reads a disk, or is slow
            ─► purgatory.park(…)              a fetch that waits for records

Handlers change topics and settings through ``commands.administration``, to which they pass ``served``.
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
from siltstone.broker.purgatory import FetchPurgatory
from siltstone.broker.quotas import QuotaManager, QuotaWindows
from siltstone.broker.sessions import FetchSessionCache
from siltstone.broker.turns import FetchTurns
from siltstone.broker.wire.fields import ZERO_ID
from siltstone.commands.served import Served
from siltstone.log.checkpoints import broker_id_of, node_number
from siltstone.log.names import TopicPartition
from siltstone.log.partition import PartitionLog
from siltstone.log.validation import validate_and_assign
from siltstone.runtime.producing import NewRecord, batch_of

if TYPE_CHECKING:
    from siltstone.broker.request_context import RequestContext

THREADS = 4
"""Threads of the pool (Kafka's ``num.io.threads``). Compiled kernels and system calls release Python's
interpreter lock, so the pool's threads run beside the loop's."""
MANY_PARTITIONS = 200
"""A request with more partitions takes over a millisecond, so the pool answers it."""
Result = TypeVar("Result")


def load_kernels(is_needed: Callable[[], bool] = lambda: True) -> None:
    """Load the compiled functions that validate and scan batches, by a call of each function for each codec,
    until ``is_needed`` returns False. Loading takes a second, for which the first request would block the
    loop's thread otherwise."""
    for codec in CODECS:
        if not is_needed():
            return
        batch = batch_of([NewRecord(value=b"value", timestamp=0)], codec.name, 0)
        validated = validate_and_assign(batch, config=LogConfig(), next_offset=0, now_ms=0, leader_epoch=0)
        scan_headers(validated.data, len(validated.data))


class Broker(Closing):
    """One broker. ``manager``: the open logs; ``config``: the broker's current settings; ``node_id`` and
    ``cluster_id``: those in ``meta.properties``, else 0 and ""; ``purgatory``, ``fetch_turns`` and
    ``fetch_sessions``: the parked fetches, the fetches that wait for their turn, and the fetch sessions, all
    for the loop's thread only; ``counts``: the counters of requests and topics; ``quotas``: the quotas in
    force and what clients have used of them. ``_logs``: the logs that ``log_of`` has looked up.
    """

    def __init__(self, served: Served, loop: AbstractEventLoop) -> None:
        """A broker over the directories that ``served`` has open. Raises NotAllowedError if it only reads
        them (``siltstone serve --look``)."""
        self.served, self.manager, self.loop = served, served.opened(), loop
        self.clock: Clock = served.clock
        self.fetch_turns, self.counts = FetchTurns(loop), Counts()
        self.purgatory = FetchPurgatory(loop, self.fetch_turns)
        self.fetch_sessions = FetchSessionCache()
        self.quotas = QuotaManager(
            loop.time, QuotaWindows.of(self.config), QuotaWindows.of(self.config, "controller.")
        )
        self.quotas.replace(self.manager.topics.quotas)
        self._producer_ids = ProducerIds(self.manager)
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="siltstone-broker")
        self._is_closed = False
        self._kernels = self._pool.submit(load_kernels, lambda: not self._is_closed)
        # This fills a cache before a request needs it: the ids of topics that a Kafka has created are in a
        # file of each topic.
        self._pool.submit(lambda: self.manager.topics.ids)
        self._logs: dict[tuple[str, int], PartitionLog] = {}
        self.manager.when_deleted = self._forget_log
        properties = self.manager.serving()[0].directory.properties()
        self.node_id = node_number(broker_id_of(properties)) or 0
        self.cluster_id = properties.get("cluster.id", "")

    @property
    def config(self) -> Config:
        """The broker's current settings."""
        return self.manager.config

    def in_pool(self, function: Callable[..., Result], *arguments: object) -> Future[Result]:
        """Call a function in a thread of the pool. The future has its result, or the error that it raises."""
        return self.loop.run_in_executor(self._pool, function, *arguments)

    def log_of(self, topic: str, partition: int) -> PartitionLog:
        """The open log of a partition. In any thread. Raises UnknownTopicError for an unknown topic or
        partition, StorageError if the log is closed or its directory is offline."""
        log = self._logs.get((topic, partition))
        if log is None or not log.is_open:
            self._logs.pop((topic, partition), None)
            log = self.manager.get(TopicPartition(topic, partition))
            if not log.is_open:
                reason = f"the log is not served: {log.offline or 'it is closed'}"
                raise StorageError(reason, path=str(log.topic_partition))
            self._logs[topic, partition] = log
            # The log may have been deleted before it was stored here: then ``when_deleted`` came too early.
            if not log.is_open:
                self._forget_log(TopicPartition(topic, partition))
        return log

    def _forget_log(self, topic_partition: TopicPartition) -> None:
        """Forget a deleted log: as long as its object exists, its files stay open, and take space."""
        self._logs.pop((topic_partition.topic, topic_partition.partition), None)

    def when_loaded(self, function: Callable[[], object]) -> None:
        """Call a function in a thread of the pool once the kernels are loaded, or at once, in this thread, if
        they are."""
        self._kernels.add_done_callback(lambda _: function())

    def note_failure(self, log: PartitionLog) -> None:
        """Call this after a failed append, in any thread: if the log went offline (its disk failed), a thread
        of the pool takes its directory offline."""
        if log.offline is not None:
            self._pool.submit(self.manager.upkeep.take_failed_offline)

    def topic_of_id(self, topic_id: bytes) -> str | None:
        """The name of the topic with this id (16 bytes); None if no topic has it."""
        return self.manager.topics.names_by_id.get(topic_id)

    def id_of_topic(self, name: str) -> bytes:
        """The id of a topic (16 bytes); ``ZERO_ID`` for a topic without an id and for an unknown topic."""
        return self.manager.topics.ids.get(name, ZERO_ID)

    def host_and_port(self, context: RequestContext) -> tuple[str, int]:
        """The advertised address of the listener that the request came through."""
        listener = context.connection.listener
        return listener.host, listener.port

    def producer_id_at_hand(self) -> int | None:
        """A new producer id from the current block, without waiting; None if that is not possible: then call
        ``next_producer_id`` in the pool."""
        return self._producer_ids.take_at_hand()

    def next_producer_id(self) -> int:
        """A new producer id, from a new block if need be. It may write files, so it is not for the loop's
        thread. Raises StorageError."""
        return self._producer_ids.take()

    def close(self) -> None:
        """Wake the parked fetches, and wait until the pool's threads are done."""
        self._is_closed = True
        self.purgatory.close()
        self._pool.shutdown()
