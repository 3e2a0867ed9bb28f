"""One Spark session for all tests here: starting one takes many seconds."""

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession

from siltstone.spark.session import start_session
from siltstone.spark.settings import PYTHON_SETTING
from tests.support.spark.java import quick_java_options
from tests.support.spark.python import python_with_byte_code
from tests.support.thoroughness import THOROUGH


@pytest.fixture(scope="package")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Two workers on this machine. It ends before the worker's next folder, whose tests may start their own:
    a process has one session."""
    catalog = str(tmp_path_factory.mktemp("warehouse"))
    settings = {"spark.sql.warehouse.dir": catalog, "spark.connect.grpc.binding.port": "0"}
    settings["spark.sql.shuffle.partitions"] = "3"
    settings[PYTHON_SETTING] = python_with_byte_code(tmp_path_factory.mktemp("python"))
    master, java_options = "local[2]", None
    if not THOROUGH:  # Spark would compile a class for each query, which takes a fifth of the time
        settings["spark.sql.codegen.wholeStage"] = "false"
        settings["spark.sql.codegen.factoryMode"] = "NO_CODEGEN"
        # A job of DataFrames would have a daemon of its own, beside that of RDDs: three seconds.
        settings["spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled"] = "false"
        master = "local[2,2]"  # a task that fails for good is tried twice, in place of three times
        java_options = quick_java_options()
    session = start_session(master, settings=settings, java_options=java_options)
    yield session
    session.stop()


@pytest.fixture(scope="package")
def connect_server(session: SparkSession) -> Iterator[str]:
    """The address of a Spark Connect server in the Java of ``session``."""
    pytest.importorskip("grpc", reason="Spark Connect's client needs grpcio and grpcio-status")
    java: Any = session.sparkContext._jvm
    module = getattr(java.org.apache.spark.sql.connect.service, "SparkConnectService$")
    service, context = getattr(module, "MODULE$"), session.sparkContext._jsc
    service.start(context.sc())
    yield f"sc://127.0.0.1:{service.localPort()}"
    service.stop(java.scala.Option.empty(), java.scala.Option.empty())
