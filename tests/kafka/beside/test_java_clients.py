"""Kafka's Java clients, old and new, against us: `Clients.java` uses one as a program does."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from siltstone.broker.sessions import FetchedPartitions, FetchSessionCache
from tests.support.broker_twin.ours import bootstrap_of, our_broker
from tests.support.broker_twin.pair import Pair
from tests.support.kafka.jars import HERE, java_command, libs_of
from tests.support.kafka.toolbox import run_tool

pytestmark = pytest.mark.kafka

SECONDS = 120
COUNT = 40
"""Records of each of the ten producers."""
PARTITIONS, ROUNDS = 300, 9
"""More than are read at one time in the thread of the sockets."""
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
START_MS = 1_600_000_000_000


@pytest.mark.parametrize(
    "version",
    ["4.3", pytest.param("3.9", marks=pytest.mark.long), pytest.param("2.8", marks=pytest.mark.long)],
)
def test_java_client(version: str, pair: Pair) -> None:
    arguments = (pair.bootstrap["ours"], f"java-{version}", str(COUNT))
    if version == "4.3":
        ran = run_tool("Clients", *arguments)
        assert ran.code == 0, ran.err[-3000:]
        assert ran.out.splitlines() == list(expected())
        return
    libs = libs_of(HERE / f"clients-{version}" / "pom.xml", "kafka-clients")
    command = java_command(str(HERE / "Clients.java"), *arguments, libs=libs)
    completed = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert completed.returncode == 0, completed.stderr[-3000:]
    assert completed.stdout.splitlines() == list(expected())


def test_one_consumer_of_many_partitions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The consumer reads in one fetch session, its only one, and closes it."""
    sizes, begin = list[int](), FetchSessionCache.begin

    def note(sessions: FetchSessionCache, partitions: FetchedPartitions, **options: Any) -> int:
        sizes.append(len(partitions))
        return begin(sessions, partitions, **options)

    monkeypatch.setattr(FetchSessionCache, "begin", note)
    with our_broker(tmp_path / "logs") as server:
        ran = run_tool("ManyPartitions", bootstrap_of(server), "many", str(PARTITIONS), str(ROUNDS))
        assert ran.code == 0, ran.err[-3000:]
        total = PARTITIONS // 3 * ROUNDS
        assert ran.out.splitlines() == [f"read {total} of {total}"]
        assert sizes == [PARTITIONS]
        assert len(server.broker.fetch_sessions) == 0


def expected() -> Iterator[str]:
    """What the program prints when all is well."""
    total = 2 * len(CODECS) * COUNT
    for isolation in ("read_uncommitted", "read_committed"):
        for partition in range(2):
            for number in range(partition, total, 2):
                codec = CODECS[number // (2 * COUNT)]
                value = "null" if number % 7 == 0 else f"{codec} {number}"
                place = f"{partition} {number // 2:04d} {START_MS + number}"
                yield f"{isolation} {place} k{number} {value} k{number}"
        yield "starts {0=0, 1=0}"
        yield f"ends {{0={total // 2}, 1={total // 2}}}"
        yield "at time 3"
    yield "deleted true"
