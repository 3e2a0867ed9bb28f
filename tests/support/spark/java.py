"""Options of Java for processes that live shortly."""

from __future__ import annotations

from siltstone.spark import class_archive
from siltstone.spark.java import java_version
from tests.support.kafka import jars

NO_VERIFIER = " ".join(jars.NO_VERIFIER)


def quick_java_options() -> str:
    """What ``start_session`` takes: those of the class archive, if there is one, or else no verifier."""
    return class_archive.java_options(java_version()) or f" {NO_VERIFIER}"
