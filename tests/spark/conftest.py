"""One Spark session for all tests here: starting one takes many seconds."""

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
