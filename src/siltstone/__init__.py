"""Siltstone: a Kafka-format commit log for Python whose log cleaner runs on Spark.

::

    import siltstone as st

    with st.open("/data/logs", mode="a") as logs:         # a log directory (st.Log opens one partition)
        logs.topics.create("users", config={"cleanup.policy": "compact"})
        logs.send("users", key=b"anna", value=b"1")
        for record in logs["users"]:
            print(record.offset, record.key, record.value)

    st.clean("/backup/kafka", topic="users", out="/backup/cleaned")
    st.verify("/backup/kafka", "/backup/cleaned").raise_for_errors()

``docs/library.md`` is the guide. Errors are in ``st.errors``, all below ``SiltstoneError``. Importing the
package loads no Spark, no server and no web code: a name is loaded when it is first used.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from siltstone.base import errors as errors
    from siltstone.base.clock import Clock as Clock
    from siltstone.base.clock import ManualClock as ManualClock
    from siltstone.base.config import LogConfig as LogConfig
    from siltstone.base.errors import LogError as LogError
    from siltstone.base.errors import SiltstoneError as SiltstoneError
    from siltstone.base.errors import UsageError as UsageError
    from siltstone.base.records.build import NewBatchHeader as NewBatchHeader
    from siltstone.commands.clean import CleanOutcome as CleanOutcome
    from siltstone.commands.clean import CleanRequest as CleanRequest
    from siltstone.commands.export import export as export
    from siltstone.commands.library import CleanKeywords as CleanKeywords
    from siltstone.commands.library import ExplainKeywords as ExplainKeywords
    from siltstone.commands.library import LogKeywords as LogKeywords
    from siltstone.commands.library import OpenLogs as OpenLogs
    from siltstone.commands.library import ReadableLogs as ReadableLogs
    from siltstone.commands.library import clean as clean
    from siltstone.commands.library import explain as explain
    from siltstone.commands.library import open as open
    from siltstone.commands.library import start_cleaner as start_cleaner
    from siltstone.commands.library import verify as verify
    from siltstone.commands.review import ExplainRequest as ExplainRequest
    from siltstone.commands.review import VerifyRequest as VerifyRequest
    from siltstone.compaction.explain import Explanation as Explanation
    from siltstone.log.following import Consumer as Consumer
    from siltstone.log.following import RecordStream as RecordStream
    from siltstone.log.names import TopicPartition as TopicPartition
    from siltstone.log.partition import AppendResult as AppendResult
    from siltstone.log.partition import PartitionLog as PartitionLog
    from siltstone.log.read_only import ReadOnlyLog as ReadOnlyLog
    from siltstone.log.read_only import TopicLogs as TopicLogs
    from siltstone.log.reading import AtTime as AtTime
    from siltstone.log.reading import Record as Record
    from siltstone.log.retention import register_policy as register_policy
    from siltstone.runtime.embedded import Log as Log
    from siltstone.runtime.manager import LogManager as LogManager
    from siltstone.runtime.producing import NewRecord as NewRecord
    from siltstone.runtime.producing import RecordMetadata as RecordMetadata
    from siltstone.runtime.producing import RecordProducer as RecordProducer
    from siltstone.runtime.producing import append as append
    from siltstone.spark.embedded import start_compaction as start_compaction
    from siltstone.spark.read import read as read
    from siltstone.tables.arrow import to_arrow as to_arrow
    from siltstone.tables.avro import Avro as Avro
    from siltstone.tables.decoding import Json as Json
    from siltstone.tables.export import Export as Export
    from siltstone.tables.protobuf import Protobuf as Protobuf
    from siltstone.verify.findings import Verdict as Verdict

__version__ = "0.1.0"

_MODULES = {
    "siltstone.base": ("errors",),
    "siltstone.base.clock": ("Clock", "ManualClock"),
    "siltstone.base.config": ("LogConfig",),
    "siltstone.base.errors": ("LogError", "SiltstoneError", "UsageError"),
    "siltstone.base.records.build": ("NewBatchHeader",),
    "siltstone.commands.clean": ("CleanOutcome", "CleanRequest"),
    "siltstone.commands.export": ("export",),
    "siltstone.commands.library": (
        "CleanKeywords",
        "ExplainKeywords",
        "LogKeywords",
        "OpenLogs",
        "ReadableLogs",
        "clean",
        "explain",
        "open",
        "start_cleaner",
        "verify",
    ),
    "siltstone.commands.review": ("ExplainRequest", "VerifyRequest"),
    "siltstone.compaction.explain": ("Explanation",),
    "siltstone.log.following": ("Consumer", "RecordStream"),
    "siltstone.log.names": ("TopicPartition",),
    "siltstone.log.partition": ("AppendResult", "PartitionLog"),
    "siltstone.log.read_only": ("ReadOnlyLog", "TopicLogs"),
    "siltstone.log.reading": ("AtTime", "Record"),
    "siltstone.log.retention": ("register_policy",),
    "siltstone.runtime.embedded": ("Log",),
    "siltstone.runtime.manager": ("LogManager",),
    "siltstone.runtime.producing": ("NewRecord", "RecordMetadata", "RecordProducer", "append"),
    "siltstone.spark.embedded": ("start_compaction",),
    "siltstone.spark.read": ("read",),
    "siltstone.tables.arrow": ("to_arrow",),
    "siltstone.tables.avro": ("Avro",),
    "siltstone.tables.decoding": ("Json",),
    "siltstone.tables.export": ("Export",),
    "siltstone.tables.protobuf": ("Protobuf",),
    "siltstone.verify.findings": ("Verdict",),
}
"""The public names by the module that has them. (The imports above say the same to type checkers.)"""
_EXPORTS = {name: module for module, names in _MODULES.items() for name in names}
"""The module of each public name, which is loaded when the name is first used."""
__all__ = list(_EXPORTS)


def _load(name: str) -> object:
    module = import_module(_EXPORTS[name])
    if hasattr(module, name):
        return getattr(module, name)
    # ``errors`` is itself a module: it becomes an attribute of its package when it is imported.
    return import_module(f"{_EXPORTS[name]}.{name}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


class _Package(ModuleType):
    """The class of this module, so that ``siltstone.verify`` is always the public function.

    When a module of the package ``siltstone/verify`` is imported, Python assigns that package to the
    attribute ``siltstone.verify``. The setter ignores it.
    """

    @property
    def verify(self) -> object:
        return _load("verify")

    @verify.setter
    def verify(self, package: ModuleType) -> None:
        pass

    def __reduce__(self) -> tuple[object, ...]:
        # Spark pickles functions that refer to this module. Pickle knows how to treat plain modules, but not
        # this subclass: import the module again where it is unpickled.
        return import_module, (__name__,)


sys.modules[__name__].__class__ = _Package

if not TYPE_CHECKING:  # a type checker that sees this function accepts any name

    def __getattr__(name: str) -> object:
        if name not in _EXPORTS:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = _load(name)
        return value
