"""One Spark session for all tests here: starting one takes many seconds."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from siltstone.spark.session import start_session


@pytest.fixture(scope="session")
def session() -> Iterator[SparkSession]:
    """Two workers on this machine."""
    session = start_session("local[2]")
    yield session
    session.stop()
