"""One Spark session for all tests here: starting one takes many seconds."""

import fcntl
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from siltstone.spark.session import start_session


@pytest.fixture(scope="session")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Two workers on this machine."""
    catalog = str(tmp_path_factory.mktemp("warehouse"))
    session = start_session("local[2]", settings={"spark.sql.warehouse.dir": catalog})
    yield session
    session.stop()


@pytest.fixture
def connect_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Spark Connect on a local master has one port: of pytest's workers one has it at a time."""
    with (tmp_path_factory.getbasetemp().parent / "connect.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
