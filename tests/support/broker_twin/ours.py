"""Our broker in this process, with the settings that the real one beside it has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from siltstone.broker.listeners import BrokerListener
from siltstone.broker.server import BrokerServer
from siltstone.commands.served import Served, ServeOptions
from tests.support.kafka.broker import DEFAULTS

SETTINGS: Final[Mapping[str, str]] = {
    "auto.create.topics.enable": "true",
    "num.partitions": "2",
    "log.retention.ms": "-1",
    "log.initial.task.delay.ms": "86400000",
    "log.cleaner.backoff.ms": "86400000",
}
"""What both brokers of a twin are told beside ``DEFAULTS``: records are long past and must stay, and nothing
works in the background: one would remove segments or records before the other does."""


@contextmanager
def our_broker(directory: Path, settings: Mapping[str, str] = SETTINGS) -> Iterator[BrokerServer]:
    """A broker on a free port of 127.0.0.1 over ``directory``."""
    properties = directory.with_name(f"{directory.name}.properties")
    of_logs = {name: value for name, value in DEFAULTS.items() if name.startswith(("log.", "node."))}
    lines = {**of_logs, **settings, "log.dirs": str(directory), "log.cleaner.enable": "false"}
    properties.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
    with (
        Served(ServeOptions(paths=(directory,), properties=properties)) as served,
        BrokerServer(served, [BrokerListener(port=0)]) as server,
    ):
        server.start()
        yield server


def bootstrap_of(server: BrokerServer) -> str:
    """Its address for clients."""
    address = server.addresses[0]
    return f"{address.host}:{address.port}"
