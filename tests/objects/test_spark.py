"""Spark's workers read objects, with the options of the driver."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import siltstone as st
from siltstone.base import files
from siltstone.base.errors import EngineError
from siltstone.base.files import objects
from siltstone.base.files.backups import BackedUpFile, RestorePoint, restore_points
from siltstone.compaction.inplace.stored_copy import FileToPut
from siltstone.compaction.putting import ChunkStore
from siltstone.spark.clean import put_files_task
from siltstone.spark.internals import forget_java
from siltstone.spark.rows import report_of, rows_of
from siltstone.spark.session import start_session
from tests.objects.test_lakes import values
from tests.support.objects.faulty import DENIED, LOST, SHORT, FaultyProxy, faulty_proxy
from tests.support.objects.store import upload
from tests.support.tiered import TieredLog, put_below

pytestmark = pytest.mark.long
RECORDS = 500


@pytest.fixture(autouse=True)
def java_of_its_own() -> Iterator[None]:
    """The workers of a test have its environment: the address of the store, and the credentials."""
    yield
    forget_java()


@pytest.fixture
def uploaded(store: Any, bucket: str, tmp_path: Path) -> str:
    with st.open(tmp_path / "logs", mode="a") as logs:
        logs.topics.create("users", 2, {"cleanup.policy": "compact", "segment.bytes": "20000"})
        logs.topics.create("others", 1, {"cleanup.policy": "compact", "segment.bytes": "20000"})
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
        completed = subprocess.run(
            words, check=False, capture_output=True, text=True, env=environment, cwd=tmp_path
        )
        assert completed.returncode == 0, completed.stderr
        assert secret not in completed.stdout + completed.stderr
        document = json.loads(completed.stdout)["logs"]
        return [
            {name: row[name] for name in row if name != "seconds" and "_ms" not in name} for row in document
        ]

    on_spark = logs("--engine", "spark", "--master", "local[2]")
    assert on_spark == logs("--engine", "process")
    assert len(on_spark) == 3


def test_a_dataframe_reads_a_bucket_with_the_hadoop_settings_of_its_session(
    uploaded: str, s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the settings that the session has for Hadoop; its workers were started without them."""
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
        assert len(st.explain(uploaded, engine="spark").logs) == 3
    finally:
        session.stop()


@pytest.mark.timeout(300)
def test_tasks_of_an_export_put_its_files(
    uploaded: str, bucket: str, s3_url: str, tmp_path: Path, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parquet, Delta and Iceberg, on executors that are processes of their own."""
    with st.open(tmp_path / "logs") as logs:
        expected = sorted(
            value
            for number in range(2)
            for value in st.to_arrow(logs["users", number], view="latest")["value"].to_pylist()
        )
    session = start_session("local-cluster[2,1,1024]")
    by_driver, put_file = list[str](), objects.put_file
    monkeypatch.setattr(files, "put_file", lambda *places: (by_driver.append(str(places)), put_file(*places)))
    try:
        for form in ("parquet", "delta", "iceberg"):
            target = f"s3://{bucket}/{form}"
            exported = st.export(uploaded, target, form, "users", view="latest", spark=session)
            assert exported.records == len(expected)
            if form != "parquet":
                assert st.export(uploaded, target, form, "users", view="latest", spark=session).files == 0
                assert values(target, form, s3_url, exported.version) == expected
            else:
                rows = [row["path"] for chunk in store.list(form) for row in chunk]
                parts = [bytes(store.get(key).bytes()) for key in rows if key.endswith(".parquet")]
                values_by_part = [pq.read_table(pa.BufferReader(part))["value"].to_pylist() for part in parts]
                assert sorted(value for part in values_by_part for value in part) == expected
    finally:
        session.stop()
    assert by_driver == []


# clean --out s3://…: what the cleaning leaves as it is goes from store to store by tasks.


@pytest.fixture
def proxy(s3_url: str, bucket: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyProxy]:
    """What executors ask the store through; they are started with its address."""
    with faulty_proxy(s3_url) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        files.forget_options()
        yield proxy


def same_files(point: RestorePoint, other: RestorePoint) -> bool:
    def by_name(point: RestorePoint) -> dict[str, tuple[int, tuple[str, ...]]]:
        (directory,) = point.directories
        return {file.name: (file.size, file.chunks) for file in directory.files if "/" in file.name}

    return by_name(point) == by_name(other)


@pytest.mark.timeout(600)
def test_tasks_put_what_a_cleaning_leaves_as_it_is(
    uploaded: str, bucket: str, proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On executors that are processes of their own; through a store that loses an answer, and one that
    refuses."""
    in_process, on_spark = Path(f"s3://{bucket}/in-process"), Path(f"s3://{bucket}/on-spark")
    options: dict[str, Any] = {"topic": "users", "force": True, "now_ms": 1_900_000_000_000}
    st.clean(uploaded, out=in_process, engine="process", **options)
    (expected,) = restore_points(in_process)
    (metadata, *_) = [
        file for file in expected.directories[0].files if file.name.endswith("partition.metadata")
    ]
    (chunk,) = metadata.chunks
    by_driver, put = list[str](), objects.put_new
    monkeypatch.setattr(
        "siltstone.base.files.backups.put_new",
        lambda path, data: (by_driver.append(str(path)), put(path, data))[1],
    )
    new = [file for file in expected.directories[0].files if file.name.startswith("users-")]
    new_chunk = next(file.chunks[0] for file in new if file.name.endswith(".log") and file.size)
    session = start_session("local-cluster[2,1,1024]")
    try:
        proxy.fail(DENIED, words=("PUT", f"/{new_chunk}"), forever=True)
        refused = st.clean(uploaded, out=on_spark.with_name("refused"), engine="spark", **options)
        assert "failed" in {result.status for result in refused.results}
        st.verify(uploaded, on_spark.with_name("refused"), engine="process").raise_for_errors()
        proxy.fail(DENIED, words=("PUT", f"/on-spark/chunks/{chunk[:2]}/"), forever=True)
        with pytest.raises(EngineError, match="does not allow it"):
            st.clean(uploaded, out=on_spark, engine="spark", **options)
        assert restore_points(on_spark) == []
        assert not files.exists(on_spark / "writer.json")
        proxy.fail(LOST, words=("PUT", f"/on-spark/chunks/{chunk[:2]}/"))
        outcome = st.clean(uploaded, out=on_spark, engine="spark", **options)
        assert "cleaned" in {result.status for result in outcome.results}
        assert proxy.met == 1
    finally:
        session.stop()
    (point,) = restore_points(on_spark)
    assert same_files(point, expected)
    in_logs = {chunk for file in expected.directories[0].files if "/" in file.name for chunk in file.chunks}
    assert new_chunk in in_logs
    assert in_logs.isdisjoint(Path(path).name for path in by_driver)
    st.verify(uploaded, on_spark, engine="process", topic="users").raise_for_errors()


def reports_of(batches: Iterator[pa.RecordBatch]) -> list[Any]:
    return [report_of(row, BackedUpFile) for row in rows_of(batches)]


def test_attempts_of_one_task_put_the_same(
    uploaded: str,
    bucket: str,
    store: Any,
    proxy: FaultyProxy,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(objects, "RETRIES", 1)
    target = Path(f"s3://{bucket}/copy")
    listed = files.list_files(f"{uploaded}/users-0")
    to_put = [
        FileToPut(source=f"{uploaded}/users-0/{name}", name=f"users-0/{name}", size=status.size)
        for name, status in sorted(listed.items())
    ]

    def attempt(target: Path = target, to_put: list[FileToPut] = to_put) -> list[Any]:
        numbers = pa.RecordBatch.from_pydict({"id": pa.array([0], pa.int64())})
        store_of_copy = ChunkStore(target=target, known_chunks=frozenset())
        return reports_of(put_files_task(store_of_copy, [to_put], iter([numbers])))

    for requests in (3, 7, 12):  # the task's executor dies
        proxy.die_after(requests)
        with pytest.raises(OSError):
            attempt()
        proxy.live()
        files.forget_options()
    assert restore_points(target) == []
    first = attempt()
    keys = sorted(str(row["path"]) for chunk in store.list("copy") for row in chunk)
    assert attempt() == first  # beside it, or after its answer was lost
    assert sorted(str(row["path"]) for chunk in store.list("copy") for row in chunk) == keys
    assert {key.rpartition("/")[2] for key in keys} == {chunk for file in first for chunk in file.chunks}
    # New segments of a shared folder.
    log_folder, third = tmp_path / "logs" / "users-0", Path(f"s3://{bucket}/third")
    new = [
        FileToPut(source=str(log_folder / name), name=f"users-0/{name}", size=status.size)
        for name, status in sorted(files.list_files(log_folder).items())
    ]
    proxy.die_after(5)
    with pytest.raises(OSError):
        attempt(third, new)
    proxy.live()
    files.forget_options()
    assert attempt(third, new) == attempt(third, new)
    assert restore_points(third) == []
    # Files of a restore point of the same store: the store copies their chunks, and none of them is read.
    other = Path(f"s3://{bucket}/other")
    st.clean(uploaded, out=f"{uploaded}-copy", engine="process", topic="users")
    point = files.newest_stored(Path(f"{uploaded}-copy")) / "others-0"
    chunked = [
        FileToPut(source=str(point / name), name=name, size=status.size)
        for name, status in files.list_files(point).items()
    ]
    with proxy.recording() as recorded:
        copied = attempt(other, chunked)
    assert {file.name: file.size for file in copied} == {file.name: file.size for file in chunked}
    assert sum("x-amz-copy-source" in headers for _, headers in recorded) == len(
        {chunk for file in copied for chunk in file.chunks}
    )
    assert not [request for request, _ in recorded if request.startswith("GET") and "/chunks/" in request]
    proxy.fail(SHORT, words=("GET", "/one/users-0/", ".log"), forever=True)
    with pytest.raises(OSError, match="sent"):
        attempt()


@pytest.mark.parametrize("master", ["local[2]", "local-cluster[2,1,1024]"])
def test_a_dataframe_of_a_tiered_topic_has_its_remote_records(master: str, tmp_path: Path) -> None:
    storage = tmp_path / "storage"
    storage.mkdir()
    log = TieredLog(directory=tmp_path / "logs", put=put_below(storage))
    log.write(600)
    whole = [(record.offset, record.value) for record in st.open(log.directory)["orders"]]
    log.tier()
    session = start_session(master)
    try:
        rows = st.read(session, log.directory, "orders", remote=str(storage)).select("offset", "value")
        assert sorted((row.offset, bytes(row.value)) for row in rows.collect()) == whole
        latest = st.read(session, log.directory, "orders", remote=str(storage), view="latest")
        assert latest.count() == 41
    finally:
        session.stop()
