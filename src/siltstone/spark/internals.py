"""All uses of PySpark and Py4J beyond their public interfaces.

Each use is a row of ``PRIVATE_USES``: a class or function of theirs, what its source must contain, the
purpose. ``tests/spark/test_internals.py`` holds the installed PySpark to these rows and to
``CHECKED_VERSIONS``. With a new release: let that test pass, run ``tests/spark``, then add the versions to
``CHECKED_VERSIONS``.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pyspark.java_gateway
from pyspark import SparkConf, SparkContext
from pyspark.errors.exceptions.captured import install_exception_handler
from pyspark.sql import SparkSession

CHECKED_VERSIONS = {"pyspark": ("4.3.0",), "py4j": ("0.10.9.9",)}
"""The versions with which all rows of ``PRIVATE_USES`` were checked."""
WORKER_EXITED = "Python worker exited unexpectedly"
"""Spark's message for a worker that was killed."""
QUERY_ID = "sql.streaming.queryId"
"""Spark's local property with the id of a stream, which stays the same over restarts from its checkpoint."""


PRIVATE_USES = {
    "pyspark.core.context:SparkContext": {
        "_gateway: ClassVar[Optional[JavaGateway]] = None": "Java's process, also after its death",
        "_jvm: ClassVar[Optional[JVMView]] = None": "cleared, so that another Java can be started",
        '_active_spark_context: ClassVar[Optional["SparkContext"]] = None': "cleared, too",
    },
    "pyspark.core.context:SparkContext._ensure_initialized": {
        "SparkContext._gateway = gateway or launch_gateway(conf)": "start Java first, then send it the secret"
    },
    "pyspark.core.context:SparkContext._do_init": {
        "self._jsc = jsc or self._initialize_context(": "is it stopped, and how many task slots has it",
        "self._accumulatorServer = ": "its handle_error must print nothing after an interrupt",
        "signal.signal(signal.SIGINT, signal_handler)": "session.py restores the handler that was set before",
        "self._temp_dir = (": "the application's folder for temporary files",
    },
    "pyspark.java_gateway:launch_gateway": {
        'if "PYSPARK_GATEWAY_PORT" in os.environ:': "spark-submit has started Java",
        "proc = Popen(command, **popen_kwargs)": "replaced: Java gets a process group of its own",
        "gateway.proc = proc": "Java's process, to wait for it",
        'gateway_secret = os.environ["PYSPARK_GATEWAY_SECRET"]': "connects to the Java of java.py",
        'env["_PYSPARK_DRIVER_CONN_INFO_PATH"] = conn_info_file': "java.py does the same",
        "gateway_port = read_int(info)": "what Java writes there: java.py reads it",
    },
    "pyspark.sql.session:SparkSession": {
        '_instantiatedSession: ClassVar[Optional["SparkSession"]] = None': "the program's session",
        '_activeSession: ClassVar[Optional["SparkSession"]] = None': "cleared after Java's death",
        "def _get_j_spark_session_class(": "LateSession sets the default session of Java's side",
    },
    "pyspark.sql.session:SparkSession.__init__": {
        "self._sc = sparkContext": "LateSession sets _sc, and no Java session",
        "self._jsc = self._sc._jsc": "LateSession sets it, too",
        "self._jvm = self._sc._jvm": "LateSession sets it, too",
        "self._jsparkSession = jsparkSession": "made at the first use of LateSession",
        "self._profiler_collector = AccumulatorProfilerCollector()": "made at the first use of LateSession",
        "install_exception_handler()": "LateSession does it, too",
    },
    "pyspark.errors.exceptions.captured:install_exception_handler": {"": "Java's exceptions as PySpark's"},
    "pyspark.sql.session:SparkSession.Builder": {
        "self._options: Dict[str, Any] = {}": "the settings that Java is started with"
    },
    "pyspark.daemon": {
        "worker_module = importlib.import_module(sys.argv[1])": "spark.daemon looks at the same argument"
    },
    "pyspark.daemon:manager": {"": "spark.daemon is this function with imports before it"},
    "pyspark.worker:main": {"": "imported before workers are forked"},
    "pyspark.worker:invoke_udf": {
        "handle_worker_exception(e, outfile)\n        sys.exit(-1)": "a task reports one exception and ends",
    },
    "pyspark.sql.worker.utils:worker_run": {
        "handle_worker_exception(e, outfile)\n        sys.exit(-1)": "the same while a query is planned",
    },
    "pyspark.util:handle_worker_exception": {
        'os.environ.get("SPARK_HIDE_TRACEBACK", False)': "set before our own error is reported",
    },
    "pyspark.worker_util": {
        'os.environ.get("SPARK_PYTHON_RUNTIME") == "PYTHON_WORKER"': "is this a Python process of Spark?",
    },
    "pyspark.sql.worker.plan_data_source_read": {
        'getattr(reader.pushFilters, "__func__", None) is not DataSourceReader.pushFilters': (
            "spark.source.BatchReader must look like a reader without pushFilters if filter pushdown is off"
        )
    },
    "pyspark.sql.pandas.types:from_arrow_schema": {"": "the schema of a table"},
    "pyspark.sql.connect.session:SparkSession": {"": "a Connect session is recognised by its module"},
    "py4j.protocol:Py4JNetworkError": {"": "by this name spark.tasks knows that Java has ended"},
    "py4j.protocol:Py4JError": {"": "by this name spark.tasks knows that Java has ended"},
}
"""By module, class or function: what its source must contain ("": nothing, it must exist), and the
purpose."""


def gateway() -> Any:
    """Py4J's gateway to the Java process that this program has started, None before that."""
    internals: Any = SparkContext
    return internals._gateway


def java_process() -> subprocess.Popen[bytes] | None:
    """The Java process of ``gateway``, alive or not; None before its start, or if another program started
    it."""
    process: subprocess.Popen[bytes] | None = getattr(gateway(), "proc", None)
    return process


def forget_java() -> None:
    """Make PySpark forget a Java process that has ended, so that the next session starts another one."""
    with contextlib.suppress(Exception):
        gateway().shutdown()
    context: Any = SparkContext
    context._gateway = context._jvm = context._active_spark_context = None
    sessions: Any = SparkSession
    sessions._instantiatedSession = sessions._activeSession = None


def start_java(builder: SparkSession.Builder) -> dict[str, str]:
    """Start Java with the builder's settings, without a session; or connect to the Java of spark-submit.

    Returns the settings of an application that starts there: of ``spark-defaults.conf``, of spark-submit, and
    the builder's."""
    context: Any = SparkContext
    options: Any = builder
    context._ensure_initialized(conf=SparkConf(loadDefaults=False).setAll(list(options._options.items())))
    return dict(SparkConf().getAll())


def connect(port: int, secret: str, process: subprocess.Popen[bytes]) -> None:
    """Make a Java that was started here PySpark's own, as if it had started it."""
    variables = {"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": secret}
    os.environ.update(variables)
    context: Any = SparkContext
    try:
        context._ensure_initialized(conf=SparkConf(loadDefaults=False))
    finally:
        for name in variables:
            del os.environ[name]
    context._gateway.proc = process


class LateSession(SparkSession):
    """A session that starts Spark SQL at its first use, since that start takes Java longer than all else.

    It then becomes an ordinary ``SparkSession``. Jobs of one stage need no Spark SQL (``jobs``).
    """

    def __init__(self, builder: SparkSession.Builder) -> None:
        options: Any = builder
        settings = SparkConf()
        for name, value in options._options.items():
            settings.set(name, value)
        context: Any = SparkContext.getOrCreate(settings)
        self._sc, self._jsc, self._jvm = context, context._jsc, context._jvm
        self._late_lock, self._late_options = threading.Lock(), dict(options._options)
        sessions: Any = SparkSession
        sessions._instantiatedSession = sessions._activeSession = self
        install_exception_handler()

    def __getattr__(self, name: str) -> Any:
        """Called for what an instance does not have: what the base class would have set."""
        if name not in ("_jsparkSession", "_profiler_collector"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        self._start()
        return self.__dict__[name]

    def newSession(self) -> SparkSession:
        """Another session of the same application."""
        self._start()
        return self.newSession()

    def _start(self) -> None:
        """Start Spark SQL, and become an ordinary session."""
        with self._late_lock:
            if "_jsparkSession" in self.__dict__:
                return
            super().__init__(self._sc, options=self._late_options)
            java_sessions = self._get_j_spark_session_class(self._jvm)
            java_sessions.setDefaultSession(self._jsparkSession)
            java_sessions.setActiveSession(self._jsparkSession)
            self.__class__ = SparkSession  # type: ignore[assignment]  # which it is from now on


def was_submitted() -> bool:
    """Did spark-submit start this process? Then Java runs already, and knows the master."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


@contextlib.contextmanager
def starting_java(started: Callable[[subprocess.Popen[bytes]], None]) -> Iterator[None]:
    """Within the block, PySpark starts Java in a process group of its own, and calls ``started`` with the
    process."""
    module: Any = pyspark.java_gateway
    popen = module.Popen

    def start(*arguments: Any, **keywords: Any) -> subprocess.Popen[bytes]:
        process: subprocess.Popen[bytes] = popen(*arguments, **keywords, process_group=0)
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
    """The session that this process has already, in any thread; None without one. Its Java may
    have ended: this is not checked."""
    internals: Any = SparkSession
    session: SparkSession | None = internals._instantiatedSession
    context: Any = None if session is None else session.sparkContext
    return session if context is not None and context._jsc is not None else None


def temporary_folder(session: SparkSession) -> str:
    """The application's folder for temporary files."""
    internals: Any = session.sparkContext
    return str(internals._temp_dir)


def silence_accumulators(session: SparkSession, is_silent: Callable[[], bool]) -> None:
    """Keep PySpark's server for accumulators from printing a traceback while ``is_silent``."""
    internals: Any = session.sparkContext
    server = internals._accumulatorServer
    print_error = server.handle_error

    def handle_error(*arguments: object) -> None:
        if not is_silent():
            print_error(*arguments)

    server.handle_error = handle_error


def hide_traceback() -> None:
    """Let this Python process of Spark report the exception that it is about to raise without its traceback.

    The process ends after an exception, so no other one is concerned. Does nothing in a program.
    """
    if os.environ.get("SPARK_PYTHON_RUNTIME") == "PYTHON_WORKER":
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"


def is_connect(session: object) -> bool:
    """Is it a session of Spark Connect, which has no ``SparkContext`` and no Java of its own?"""
    return type(session).__module__.startswith("pyspark.sql.connect")
