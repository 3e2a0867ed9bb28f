"""Parquet in a bucket: all files and then ``_SUCCESS``, or nothing that a reader takes for data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import siltstone as st
from siltstone.base import files
from siltstone.base.errors import BusyError, DirectoryRefusedError, UsageError
from siltstone.base.files import objects
from siltstone.tables.writing import WriteOptions, plan_write
from tests.support.objects.faulty import BUSY, CHANGED, DENIED, LOST, FaultyProxy, faulty_proxy
from tests.support.objects.store import upload
from tests.support.thoroughness import THOROUGH

RECORDS = 200


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("broker") / "logs"
    with st.open(path, mode="a") as opened:
        opened.topics.create("users", 2, {"segment.bytes": "5000"})
        for number in range(RECORDS):
            opened.send("users", b"value %d" % number, key=b"%d" % (number % 17))
    return path


@pytest.fixture
def proxy(s3_url: str, bucket: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyProxy]:
    monkeypatch.setattr(objects, "RETRIES", 1)
    with faulty_proxy(s3_url) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        files.forget_options()
        yield proxy


def keys(store: Any) -> list[str]:
    return sorted(str(row["path"]) for chunk in store.list() for row in chunk)


def downloaded(store: Any, tmp_path: Path) -> Path:
    folder = tmp_path / "downloaded"
    folder.mkdir()
    for key in keys(store):
        (folder / key.rpartition("/")[2]).write_bytes(bytes(store.get(key).bytes()))
    return folder


def test_a_bucket_has_what_a_directory_has(logs: Path, bucket: str, store: Any, tmp_path: Path) -> None:
    local = st.export(logs, tmp_path / "local", "parquet", "users")
    exported = st.export(logs, f"s3://{bucket}/lake/users", "parquet", "users")
    assert (exported.records, exported.files) == (local.records, local.files) == (RECORDS, exported.files)
    names = [key.rpartition("/")[2] for key in keys(store)]
    assert names[0] == "_SUCCESS"
    assert all(name.startswith("part-") for name in names[1:])
    order = [("partition", "ascending"), ("offset", "ascending")]
    of_bucket = pq.read_table(downloaded(store, tmp_path)).sort_by(order)
    of_disk = pq.read_table(tmp_path / "local").sort_by(order)
    assert of_bucket == of_disk


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (
            lambda logs, url: st.export(logs, f"{url}/there", "parquet", "users"),
            UsageError,
            "objects already",
        ),
        (
            lambda logs, url: st.export(logs, f"{url}/new", "parquet", "users", mode="overwrite"),
            UsageError,
            "no rename",
        ),
        (
            lambda logs, url: st.export(f"{url}/there", f"{url}/there/x", "parquet", "users"),
            UsageError,
            "inside",
        ),
        (
            lambda logs, url: plan_write(WriteOptions(path=f"{url}/there", topic="users"), ["value"]),
            DirectoryRefusedError,
            "only read",
        ),
        (
            lambda logs, url: plan_write(WriteOptions(path=f"{url}/new", topic="x", partitions=1), ["value"]),
            DirectoryRefusedError,
            "only read",
        ),
    ],
)
def test_what_is_refused_changes_nothing(
    change: Callable[[Path, str], object],
    error: type[Exception],
    words: str,
    logs: Path,
    store: Any,
    bucket: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    upload(store, logs, "there")
    before = keys(store)
    with pytest.raises(error, match=words):
        change(logs, f"s3://{bucket}")
    assert keys(store) == before
    assert list(tmp_path.iterdir()) == []


def test_a_second_export_to_one_prefix_is_refused(
    logs: Path, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = f"s3://{bucket}/lake"
    monkeypatch.setattr(files, "exists", lambda path: False)  # both have looked before the other began
    files.put_own(f"{target}/_siltstone-export", b"another")
    with pytest.raises(BusyError):
        st.export(logs, target, "parquet", "users")


def test_an_export_that_began_and_ended_meanwhile_stays_the_only_one(
    logs: Path, bucket: str, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, exists = f"s3://{bucket}/lake", files.exists

    def looked(path: Path) -> bool:
        if files.is_object(path) and not keys(store):
            monkeypatch.setattr(files, "exists", exists)
            assert not exists(path)
            assert st.export(logs, target, "parquet", "users").records == RECORDS
            return False
        return exists(path)

    monkeypatch.setattr(files, "exists", looked)
    with pytest.raises(UsageError, match="objects already"):
        st.export(logs, target, "parquet", "users")
    names = [key.rpartition("/")[2] for key in keys(store)]
    assert names[0] == "_SUCCESS" and all(name.startswith("part-") for name in names[1:])
    parts = [bytes(store.get(key).bytes()) for key in keys(store)[1:]]
    assert sum(pq.read_metadata(pa.BufferReader(part)).num_rows for part in parts) == RECORDS


@pytest.mark.parametrize(
    ("fault", "words", "is_made"),
    [
        (BUSY, ("PUT", "/part-"), True),
        (LOST, ("PUT", "/part-"), True),
        (LOST, ("PUT", "_SUCCESS"), True),
        (CHANGED, ("PUT", "_siltstone-export-"), False),
        (DENIED, ("PUT", "_siltstone-export-"), False),
        (DENIED, ("PUT", "lake/part-"), False),
        (DENIED, ("PUT", "_SUCCESS"), False),
    ],
)
def test_a_request_that_fails_is_repeated_or_leaves_nothing(
    fault: str, words: tuple[str, ...], is_made: bool, logs: Path, bucket: str, store: Any, proxy: FaultyProxy
) -> None:
    proxy.fail(fault, words=words)
    if is_made:
        assert st.export(logs, f"s3://{bucket}/lake", "parquet", "users").records == RECORDS
        assert "lake/_SUCCESS" in keys(store)
    else:
        with pytest.raises(OSError, match="other bytes" if fault == CHANGED else "does not allow"):
            st.export(logs, f"s3://{bucket}/lake", "parquet", "users")
        assert keys(store) == []
    assert proxy.met == 1


@pytest.mark.random
def test_a_process_that_dies_leaves_no_success(
    logs: Path, bucket: str, store: Any, proxy: FaultyProxy
) -> None:
    step = 0
    while True:
        proxy.die_after(step)
        try:
            st.export(logs, f"s3://{bucket}/{step}", "parquet", "users")
            break
        except OSError:
            files.forget_options()
            assert f"{step}/_SUCCESS" not in keys(store)
            step += 1 if THOROUGH else 2
    assert step > 4


def test_a_large_file_is_put_in_parts_and_compared(
    bucket: str, store: Any, tmp_path: Path, proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "PART_BYTES", 5 << 20)
    data = bytes(range(256)) * (41 << 10)
    (tmp_path / "large").write_bytes(data)
    with proxy.recording() as requests:
        files.put_file(tmp_path / "large", f"s3://{bucket}/large")
    assert sum("partNumber" in request for request, _ in requests) == 3
    assert not any(request.startswith("GET") for request, _ in requests)  # the ETag was enough
    assert bytes(store.get("large").bytes()) == data
    proxy.fail(CHANGED, words=("PUT", "partNumber=2"))
    with pytest.raises(OSError, match="other bytes"):
        files.put_file(tmp_path / "large", f"s3://{bucket}/changed")
    proxy.fail(DENIED, words=("PUT", "partNumber=3"))
    with pytest.raises(OSError, match="does not allow"):
        files.put_file(tmp_path / "large", f"s3://{bucket}/denied")
    assert keys(store) == ["large"]
