"""Options of stores: they reach every reader, and nothing that is written or printed has their values."""

from __future__ import annotations

import json
import logging
import pickle
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

import siltstone as st
from siltstone.base import files
from siltstone.base.errors import UsageError
from siltstone.base.files import objects
from siltstone.cli.main import run
from siltstone.spark import stores
from siltstone.spark.stores import session_options
from siltstone.spark.tasks import worker_task
from tests.support.objects.store import upload
from tests.support.thoroughness import THOROUGH

MARKER = "a-secret-that-nobody-may-see"
COMMANDS = [
    "topics --describe --json",
    "configs --describe --entity-type topics --all",
    "get-offsets --json",
    "log-dirs --describe",
    "groups --json",
    "consume --topic users -e",
    "explain --engine process --json",
    "clean --out {new} --engine process --force --report {report}",
    "erase --topic users --key 5 --dry-run",
    "produce --topic users",
    "recover",
    "hand-over --dry-run",
]
OFTEN = [command for command in COMMANDS if THOROUGH or command.split()[0] in ("consume", "clean", "produce")]
"""In every run one that prints records, one that writes, and one that is refused."""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("broker") / "logs"
    with st.open(path, mode="a") as logs:
        logs.topics.create("users", 1, {"cleanup.policy": "compact"})
        for number in range(100):
            logs.send("users", b"value %d" % number, key=b"%d" % (number % 7))
    return path


@pytest.fixture
def secret(s3_url: str, bucket: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """All that opens the bucket, as options; the environment has nothing of it."""
    for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"):
        monkeypatch.delenv(name)
    files.forget_options()
    yield {
        "aws_endpoint": s3_url,
        "aws_access_key_id": f"{MARKER}-id",
        "aws_secret_access_key": MARKER,
        "AWS_REGION": "us-east-1",
    }


def as_flags(options: dict[str, str]) -> list[str]:
    return [word for name, value in options.items() for word in ("--storage-option", f"{name}={value}")]


@pytest.fixture
def uploaded(store: Any, bucket: str, directory: Path, secret: dict[str, str]) -> str:
    upload(store, directory, "one")
    return f"s3://{bucket}/one"


def written_below(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


@pytest.mark.random
def test_no_output_has_them(
    uploaded: str,
    secret: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.chdir(tmp_path)
    statuses = []
    for command in OFTEN:
        words = [word.format(new=tmp_path / "new", report=tmp_path / "report") for word in command.split()]
        statuses.append(run([*words, "--dir", uploaded, *as_flags(secret)]))
    name = f"{uploaded}/users-0/00000000000000000000.log"
    statuses.append(run(["dump", name, "--print-data-log", *as_flags(secret)]))
    statuses.append(run(["verify", uploaded, str(tmp_path / "new"), "--json", *as_flags(secret)]))
    out, err = capfd.readouterr()
    refused = [command.split()[0] in ("produce", "recover", "hand-over") for command in OFTEN]
    assert statuses == [*refused, 0, 0], err
    assert err.count("only read") == sum(refused) > 0
    assert MARKER not in out + err + caplog.text
    assert (tmp_path / "report").exists()
    assert MARKER.encode() not in written_below(tmp_path)


def test_no_error_has_them(
    uploaded: str,
    secret: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    wrong = [
        ([f"--storage-option={MARKER}"], "no NAME=VALUE"),
        ([f"--storage-option=secret_access_key={MARKER}"], "begin with aws_"),
        ([f"--storage-option=aws_secret_access_key={MARKER}\n"], "control character"),
        ([f"--storage-option=aws_secret_access_keys={MARKER}"], "no such option"),
        (["--storage-option", "aws_secret_access_key", "=", MARKER], "no NAME=VALUE"),
    ]
    for flags, message in wrong:
        files.forget_options()
        assert run(["explain", uploaded, "--engine", "process", *flags]) in (1, 2)
        out, err = capfd.readouterr()
        assert message in err
        assert MARKER not in out + err
    files.forget_options()
    secret["aws_endpoint"] = f"http://user:{MARKER}@127.0.0.1:1"
    monkeypatch.setattr(objects, "RETRIES", 0)
    assert run(["get-offsets", "--dir", uploaded, *as_flags(secret)]) == 1
    err = capfd.readouterr().err
    assert "the store failed" in err
    assert MARKER not in err


def test_backups_take_them(
    bucket: str,
    secret: dict[str, str],
    directory: Path,
    store: Any,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    url = f"s3://{bucket}/backups"
    assert run(["backup", str(directory), url, "--json", *as_flags(secret)]) == 0
    files.forget_options()
    assert run(["restore", url, str(tmp_path / "new"), "--json", *as_flags(secret)]) == 0
    assert run(["restore", url, "--list", *as_flags(secret)]) == 0
    out, err = capfd.readouterr()
    assert MARKER not in out + err
    assert MARKER.encode() not in written_below(tmp_path)
    stored = [bytes(store.get(row["path"]).bytes()) for chunk in store.list() for row in chunk]
    assert stored
    assert not any(MARKER.encode() in data for data in stored)


def test_programs_pass_them(uploaded: str, secret: dict[str, str], directory: Path, tmp_path: Path) -> None:
    with st.open(uploaded, storage_options=secret) as logs:
        assert sum(1 for _ in logs["users"]) == 100
    for call in (
        lambda: st.explain(uploaded, engine="process", storage_options=secret),
        lambda: st.clean(uploaded, dry_run=True, engine="process", force=True, storage_options=secret),
        lambda: st.verify(uploaded, directory, engine="process", storage_options=secret),
        lambda: st.export(uploaded, tmp_path / "table", storage_options=secret),
    ):
        files.forget_options()
        result: Any = call()
        assert MARKER not in repr(result)
        assert MARKER not in json.dumps(result.to_json() if hasattr(result, "to_json") else str(result))
    with pytest.raises(UsageError) as caught:
        st.open(uploaded, storage_options={"secret": MARKER})
    assert MARKER not in repr(caught.value)


def test_tasks_get_them_and_show_nothing(secret: dict[str, str]) -> None:
    files.configure(secret)
    task = pickle.loads(pickle.dumps(worker_task(_options_in_task)))
    assert MARKER not in repr(task)
    files.forget_options()
    assert list(task([])) == [{name.lower(): value for name, value in secret.items()}]


def _options_in_task(batches: object) -> Iterator[Any]:
    yield dict(files.configured().values)


def test_a_session_lends_what_nothing_else_says(
    secret: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    hadoop = {
        "fs.s3a.access.key": "id",
        "fs.s3a.secret.key": "secret",
        "fs.s3a.endpoint": "127.0.0.1:9000",
        "fs.s3a.connection.ssl.enabled": "false",
    }
    keys = {"aws_access_key_id": "id", "aws_secret_access_key": "secret"}
    endpoint = {"aws_endpoint": "http://127.0.0.1:9000"}
    assert session_options(hadoop.get) == keys | endpoint
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "of the environment")
    assert session_options(hadoop.get) == endpoint
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    files.configure({"aws_endpoint": "https://elsewhere"})
    assert session_options(hadoop.get) == keys
    assert session_options({}.get) == {}
    assert session_options({"fs.s3a.access.key": "id"}.get) == {}, "the secret may be that of another key"


def test_a_session_replaces_the_credentials_that_it_has_lent(
    secret: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long session renews temporary credentials, and the expired ones stayed in use."""
    hadoop: dict[str, str] = {}
    java = SimpleNamespace(hadoopConfiguration=lambda: SimpleNamespace(get=hadoop.get))
    monkeypatch.setattr(stores, "java_context", lambda session: java)
    for key in ("first", "second"):
        hadoop |= {"fs.s3a.access.key": key, "fs.s3a.secret.key": "s", "fs.s3a.session.token": f"of {key}"}
        stores.use_session_options(cast(SparkSession, object()))
        values = files.configured().values
        assert (values["aws_access_key_id"], values["aws_session_token"]) == (key, f"of {key}")
    del hadoop["fs.s3a.session.token"]
    hadoop["fs.s3a.access.key"] = "permanent"
    stores.use_session_options(cast(SparkSession, object()))
    assert "aws_session_token" not in files.configured().values, "a store refuses it beside another key"
    files.configure({"aws_access_key_id": "of the program"})
    stores.use_session_options(cast(SparkSession, object()))
    assert files.configured().values["aws_access_key_id"] == "of the program"


@pytest.mark.parametrize("token", ["aws_session_token", "AWS_TOKEN"])
def test_a_session_token_is_of_its_access_key(secret: dict[str, str], token: str) -> None:
    """It stayed in use beside the permanent keys that a program, or a task's driver, passed later."""
    pair = {"aws_access_key_id": "first", "aws_secret_access_key": "s"}
    files.configure({token: "t"})
    files.configure(pair)
    files.configure({"aws_region": "eu-west-1"})
    assert files.configured().values[token.lower()] == "t"
    files.configure(pair | {"aws_access_key_id": "second"})
    assert files.configured().values == {**pair, "aws_access_key_id": "second", "aws_region": "eu-west-1"}
    files.configure(pair | {token: "of first"})
    assert files.configured().values[token.lower()] == "of first"
