"""Spark's workers read objects, with the options of the driver."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import siltstone as st
from siltstone.base import files
from siltstone.spark.session import start_session
from tests.support.objects.store import upload

pytestmark = pytest.mark.long
RECORDS = 500


@pytest.fixture
def uploaded(store: Any, bucket: str, tmp_path: Path) -> str:
    with st.open(tmp_path / "logs", mode="a") as logs:
        logs.topics.create("users", 2, {"cleanup.policy": "compact", "segment.bytes": "20000"})
        for number in range(RECORDS):
            logs.send("users", b"value %d" % number, key=b"%d" % (number % 97))
    upload(store, tmp_path / "logs", "one")
    return f"s3://{bucket}/one"


@pytest.mark.parametrize("command", ["explain", "clean --dry-run --force"])
def test_a_command_on_spark_says_what_one_process_says(
    command: str, uploaded: str, s3_url: str, tmp_path: Path
) -> None:
    secret = "a-secret-that-nobody-may-see"
    environment = {name: text for name, text in os.environ.items() if not name.startswith("AWS_")}
    flags = [f"aws_endpoint={s3_url}", "aws_access_key_id=id", f"aws_secret_access_key={secret}"]
    options = [word for flag in [*flags, "aws_region=us-east-1"] for word in ("--storage-option", flag)]

    def logs(*engine: str) -> list[dict[str, Any]]:
        code = "from siltstone.cli.main import main; main()"
        words = [sys.executable, "-c", code, *command.split(), uploaded, "--json", *engine, *options]
        done = subprocess.run(
            words, check=False, capture_output=True, text=True, env=environment, cwd=tmp_path
        )
        assert done.returncode == 0, done.stderr
        assert secret not in done.stdout + done.stderr
        document = json.loads(done.stdout)["logs"]
        return [
            {name: row[name] for name in row if name != "seconds" and "_ms" not in name} for row in document
        ]

    on_spark = logs("--engine", "spark", "--master", "local[2]")
    assert on_spark == logs("--engine", "process")
    assert len(on_spark) == 2


def test_a_dataframe_of_a_bucket(uploaded: str, s3_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what the session has for Hadoop: its workers were started without anything of it."""
    for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"):
        monkeypatch.delenv(name)
    files.forget_options()
    names = {"access.key": "id", "secret.key": "secret", "endpoint": s3_url, "endpoint.region": "us-east-1"}
    session = start_session("local[2]")
    try:
        hadoop: Any = session.sparkContext._jsc
        for name, value in names.items():
            hadoop.hadoopConfiguration().set(f"fs.s3a.{name}", value)
        assert st.read(session, uploaded, "users").count() == RECORDS
        assert st.read(session, uploaded, "users", view="latest").count() == 97
        assert len(st.explain(uploaded, engine="spark").logs) == 2
    finally:
        session.stop()
