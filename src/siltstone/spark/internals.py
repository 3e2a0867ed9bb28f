"""What Siltstone uses of PySpark and Py4J beyond their public interfaces: all of it, and nothing elsewhere.

Each use is a row of ``USED``: what it is, how its source must read, and what it is for.
``tests/spark/test_internals.py`` holds the installed PySpark to these rows and to ``CHECKED``. With a new
release: let that test pass, run ``tests/spark``, then add the versions to ``CHECKED``.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyspark.java_gateway
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

CHECKED = {"pyspark": ("4.3.0",), "py4j": ("0.10.9.9",)}
"""Versions that all rows were checked with."""
DAEMON_SETTING = "spark.python.daemon.module"
"""Spark's undocumented setting for the module that forks Python workers."""
WORKER_EXITED = "Python worker exited unexpectedly"
"""Spark's words for a worker that was killed."""
QUERY_ID = "sql.streaming.queryId"
"""Spark's local property with the id that a stream keeps over restarts from its checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Internal:
    """``holder``: a module, class or function; ``source``: what its source holds, where it has one.

    ``purpose``: what Siltstone does with it.
    """

    holder: str
    source: str
    purpose: str


USED = (
    Internal(
        holder="pyspark.core.context:SparkContext",
        source="_gateway: ClassVar[Optional[JavaGateway]] = None",
        purpose="the Java process of this program, also after its death",
    ),
    Internal(
        holder="pyspark.core.context:SparkContext",
        source="_jvm: ClassVar[Optional[JVMView]] = None",
        purpose="cleared with the gateway of a dead Java, so that the next session starts another",
    ),
    Internal(
        holder="pyspark.core.context:SparkContext",
        source='_active_spark_context: ClassVar[Optional["SparkContext"]] = None',
        purpose="cleared with the gateway of a dead Java",
    ),
    Internal(
        holder="pyspark.core.context:SparkContext._ensure_initialized",
        source="SparkContext._gateway = gateway or launch_gateway(conf)",
        purpose="start Java before it is told the secret",
    ),
    Internal(
        holder="pyspark.core.context:SparkContext._do_init",
        source="self._jsc = jsc or self._initialize_context(",
        purpose="is the context stopped, and how many tasks run at one time",
    ),
    Internal(
        holder="pyspark.core.context:SparkContext._do_init",
        source="self._accumulatorServer = ",
        purpose="its handle_error (socketserver) keeps quiet after an interrupt",
    ),
    Internal(
        holder="pyspark.core.context:SparkContext._do_init",
        source="signal.signal(signal.SIGINT, signal_handler)",
        purpose="the handler that session.py puts back",
    ),
    Internal(
        holder="pyspark.core.context:SparkContext._do_init",
        source="self._temp_dir = (",
        purpose="the application's folder for temporary files",
    ),
    Internal(
        holder="pyspark.java_gateway:launch_gateway",
        source="proc = Popen(command, **popen_kwargs)",
        purpose="replaced while Java starts, so that Java is in a process group of its own and can be ended",
    ),
    Internal(
        holder="pyspark.java_gateway:launch_gateway",
        source="gateway.proc = proc",
        purpose="the Java process, to wait for it",
    ),
    Internal(
        holder="pyspark.sql.session:SparkSession",
        source='_instantiatedSession: ClassVar[Optional["SparkSession"]] = None',
        purpose="the session of this program, whatever thread asks; cleared after Java's death",
    ),
    Internal(
        holder="pyspark.sql.session:SparkSession",
        source='_activeSession: ClassVar[Optional["SparkSession"]] = None',
        purpose="cleared after Java's death",
    ),
    Internal(
        holder="pyspark.sql.session:SparkSession.Builder",
        source="self._options: Dict[str, Any] = {}",
        purpose="the settings that Java is started with",
    ),
    Internal(
        holder="pyspark.daemon",
        source="worker_module = importlib.import_module(sys.argv[1])",
        purpose="spark.daemon reads the worker's module from the same argument",
    ),
    Internal(
        holder="pyspark.daemon:manager",
        source="",
        purpose="spark.daemon is this function with imports before it",
    ),
    Internal(holder="pyspark.worker:main", source="", purpose="imported before workers are forked"),
    Internal(
        holder="pyspark.sql.worker.plan_data_source_read",
        source='getattr(reader.pushFilters, "__func__", None) is not DataSourceReader.pushFilters',
        purpose="the data source's reader passes for one without pushFilters where pushing is off",
    ),
    Internal(
        holder="pyspark.sql.pandas.types:from_arrow_schema",
        source="",
        purpose="the schema of a table, from that of its Arrow batches",
    ),
    Internal(
        holder="pyspark.sql.connect.session:SparkSession",
        source="",
        purpose="a session of Spark Connect is told by its class's module",
    ),
    Internal(
        holder="py4j.protocol:Py4JNetworkError",
        source="",
        purpose="an error of a Java that is gone is told by its class's name",
    ),
    Internal(
        holder="py4j.protocol:Py4JError",
        source="",
        purpose="an error of a Java that is gone is told by its class's name",
    ),
)


def gateway() -> Any:
    """Py4J's gateway to the Java process that this program has started, None before that."""
    internals: Any = SparkContext
    return internals._gateway


def java_process() -> subprocess.Popen[bytes] | None:
    """That Java process, alive or not; None before it is started, or where another program started it."""
    process: subprocess.Popen[bytes] | None = getattr(gateway(), "proc", None)
    return process


def forget_java() -> None:
    """Let PySpark start another Java with the next session: this one is gone."""
    with contextlib.suppress(Exception):
        gateway().shutdown()
    context: Any = SparkContext
    context._gateway = context._jvm = context._active_spark_context = None
    sessions: Any = SparkSession
    sessions._instantiatedSession = sessions._activeSession = None


def start_java(builder: SparkSession.Builder) -> None:
    """Start Java with the builder's settings, and no session yet."""
    context: Any = SparkContext
    options: Any = builder
    context._ensure_initialized(conf=SparkConf(loadDefaults=False).setAll(list(options._options.items())))


@contextlib.contextmanager
def starting_java(started: Callable[[subprocess.Popen[bytes]], None]) -> Iterator[None]:
    """Within, PySpark starts Java in a process group of its own, and ``started`` is told the process."""
    module: Any = pyspark.java_gateway
    popen = module.Popen

    def start(*arguments: Any, **named: Any) -> subprocess.Popen[bytes]:
        process: subprocess.Popen[bytes] = popen(*arguments, **named, process_group=0)
        started(process)
        return process

    module.Popen = start
    try:
        yield
    finally:
        module.Popen = popen


def java_context(session: SparkSession) -> Any:
    """Scala's ``SparkContext`` of a session that is not stopped. Raises Py4J's errors without Java."""
    internals: Any = session.sparkContext
    return internals._jsc.sc()


def running_session() -> SparkSession | None:
    """The session that this process has already, in whatever thread; None without one. Java is not asked: it
    may be gone."""
    internals: Any = SparkSession
    found: SparkSession | None = internals._instantiatedSession
    context: Any = None if found is None else found.sparkContext
    return found if context is not None and context._jsc is not None else None


def temporary_folder(session: SparkSession) -> str:
    """Where the application's temporary files are."""
    internals: Any = session.sparkContext
    return str(internals._temp_dir)


def silence_accumulators(session: SparkSession, is_silent: Callable[[], bool]) -> None:
    """Keep PySpark's server for accumulators from printing a traceback while ``is_silent``."""
    internals: Any = session.sparkContext
    server = internals._accumulatorServer
    tell = server.handle_error

    def handle_error(*given: object) -> None:
        if not is_silent():
            tell(*given)

    server.handle_error = handle_error


def is_connect(session: object) -> bool:
    """Is it a session of Spark Connect, which has no ``SparkContext`` and no Java of its own?"""
    return type(session).__module__.startswith("pyspark.sql.connect")
