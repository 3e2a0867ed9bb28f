"""The secret by which Spark's processes know each other: on no command line, which everybody can read."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_javas_command_line_holds_no_secret(session: SparkSession) -> None:
    """On local masters Spark makes its own secret, as ``spark.authenticate`` asks for one."""
    gateway: Any = SparkContext._gateway
    process = Path(f"/proc/{gateway.proc.pid}")
    if not process.exists():
        pytest.skip("no /proc")
    words = (process / "cmdline").read_bytes().split(b"\0")
    assert b"org.apache.spark.deploy.SparkSubmit" in words
    assert not any(b"secret" in word or re.fullmatch(rb"[0-9a-f]{32,}", word) for word in words), words
    assert "spark.authenticate.secret" not in dict(session.sparkContext.getConf().getAll())
    assert session.sparkContext.getConf().get("spark.authenticate") == "true"
    assert session.range(4).repartition(2).count() == 4
    assert (process / "environ").stat().st_uid == os.geteuid()
