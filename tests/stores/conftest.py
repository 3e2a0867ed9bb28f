"""Each server starts once, when the first test asks for it; each test has a bucket of its own."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from siltstone.base import files
from tests.support.golden_sets import unpack_broker
from tests.support.objects.servers import SERVERS, Server
from tests.support.objects.store import one_certificate
from tests.support.thoroughness import THOROUGH

_numbers = itertools.count()


@pytest.fixture(
    scope="session",
    # tests/objects asks moto in every run; each put into HDFS waits 0.3 s for its end (test_hdfs.py asks it).
    params=[
        pytest.param(name, marks=pytest.mark.long if name in ("moto", "hdfs") else ()) for name in SERVERS
    ],
)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with SERVERS[request.param]() as server:
        yield server


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return one_certificate(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def bucket(server: Server, certificates: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a new bucket, which the environment's credentials open."""
    for variable, value in certificates.items():
        monkeypatch.setenv(variable, value)
    yield from opened_bucket(server, monkeypatch)


def opened_bucket(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A new bucket of a server."""
    name = f"bucket{next(_numbers)}"
    server.make_bucket(name)
    for variable, value in server.environment.items():
        monkeypatch.setenv(variable, value)
    files.forget_options()  # and what was opened with another environment
    yield name
    files.forget_options()


@pytest.fixture
def root(server: Server, bucket: str) -> str:
    """The URL of the bucket."""
    return server.address(bucket)


@pytest.fixture
def client(server: Server, bucket: str) -> Any:
    return server.client(bucket)


PARTITIONS = ("users-0", "ledger-1", "__consumer_offsets-0", "__cluster_metadata-0")
"""Compacted with and without transactions, groups, and the settings of the topics."""


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A part of a log directory of a stopped Kafka 4.3; read only."""
    path = unpack_broker(tmp_path_factory.mktemp("broker"))[0]
    for folder in path.iterdir():
        if folder.is_dir() and folder.name not in PARTITIONS:
            shutil.rmtree(folder)
    return path


@pytest.fixture(scope="session")
def small_broker(broker: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The part of it for what puts all that is there, each file for itself: one compacted partition, and the
    settings. In thorough runs all of it. Read only."""
    if THOROUGH:
        return broker
    left_out = shutil.ignore_patterns("ledger-1", "__consumer_offsets-0")
    return shutil.copytree(broker, tmp_path_factory.mktemp("small") / "data0", ignore=left_out)
