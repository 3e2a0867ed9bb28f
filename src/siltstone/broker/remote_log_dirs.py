"""Asks running brokers for their log directories: ``siltstone log-dirs --bootstrap-server``.

Siltstone's own client (``plain_client``) asks::

    the first of --bootstrap-server that answers ─ Metadata ─► brokers
    each broker ─ DescribeLogDirs ─► JSON
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from siltstone.base.errors import BrokerRefusedError, BrokerUnreachableError, UsageError
from siltstone.broker.errors import Code
from siltstone.broker.plain_client import Address, PlainClient, code_text, plain_addresses
from siltstone.broker.wire.apis import DESCRIBE_LOG_DIRS, METADATA
from siltstone.broker.wire.messages.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResult
from siltstone.broker.wire.messages.metadata import MetadataRequest
from siltstone.commands.offsets import STORAGE_ERROR
from siltstone.log.names import TopicPartition


def describe_log_dirs(
    bootstrap_server: str,
    config: Mapping[str, str],
    topics: Collection[str] = (),
    broker_ids: Collection[int] = (),
) -> dict[str, Any]:
    """The log directories of running brokers, in the shape of ``commands.offsets.describe_log_dirs``.

    ``bootstrap_server``: one address or several, with commas between them; ``config``: the client's
    properties, of which only ``security.protocol`` is used. ``topics``, ``broker_ids`` empty: all of
    them. Raises UsageError, BrokerUnreachableError, BrokerRefusedError.
    """
    addresses = plain_addresses(bootstrap_server, config, "log directories")
    brokers = _find_brokers(addresses)
    unknown = sorted(set(broker_ids) - set(brokers))
    if unknown:
        raise UsageError(
            f"there is no broker {', '.join(map(str, unknown))}",
            path="--broker-list",
            advice=f"pass some of {', '.join(map(str, sorted(brokers)))}",
        )
    described = []
    for broker_id in sorted(broker_ids or brokers):
        with PlainClient(brokers[broker_id]) as broker:
            results = _log_dirs_of(broker)
        log_dirs = [_log_dir(result, topics) for result in sorted(results, key=lambda result: result.log_dir)]
        described.append({"broker": broker_id, "logDirs": log_dirs})
    return {"version": 1, "brokers": described}


def _find_brokers(addresses: Sequence[Address]) -> dict[int, Address]:
    """The addresses of a cluster's brokers by broker id, from the first of ``addresses`` that answers. Raises
    BrokerUnreachableError, BrokerRefusedError."""
    for address in addresses[:-1]:
        with contextlib.suppress(BrokerUnreachableError), PlainClient(address) as broker:
            return _brokers_of(broker)
    with PlainClient(addresses[-1]) as broker:
        return _brokers_of(broker)


def _log_dir(result: DescribeLogDirsResult, topics: Collection[str]) -> dict[str, Any]:
    """The JSON object of a log directory. ``topics``: those to include; empty: all."""
    partitions = {
        TopicPartition(topic.name, partition.partition_index): partition
        for topic in result.topics
        if not topics or topic.name in topics
        for partition in topic.partitions
    }
    return {
        "logDir": result.log_dir,
        "error": _error(result.error_code),
        "partitions": [
            {
                "partition": str(topic_partition),
                "size": partition.partition_size,
                "offsetLag": partition.offset_lag,
                "isFuture": partition.is_future_key,
            }
            for topic_partition, partition in sorted(partitions.items())
        ],
    }


def _error(code: int) -> str | None:
    """The text of a log directory's error code; None for no error."""
    if code == Code.KAFKA_STORAGE_ERROR:
        return STORAGE_ERROR
    return None if code == Code.NONE else code_text(code)


def _brokers_of(broker: PlainClient) -> dict[int, Address]:
    """The addresses of the cluster's brokers by broker id. Raises BrokerUnreachableError,
    BrokerRefusedError."""
    response = broker.ask(METADATA, MetadataRequest(allow_auto_topic_creation=False), min_version=1)
    return {node.node_id: Address(node.host, node.port) for node in response.brokers}


def _log_dirs_of(broker: PlainClient) -> Sequence[DescribeLogDirsResult]:
    """The broker's log directories. Raises BrokerUnreachableError, BrokerRefusedError."""
    response = broker.ask(DESCRIBE_LOG_DIRS, DescribeLogDirsRequest(topics=None))
    if response.error_code:
        raise BrokerRefusedError(code_text(response.error_code), path=str(broker.address))
    results: Sequence[DescribeLogDirsResult] = response.results
    return results
