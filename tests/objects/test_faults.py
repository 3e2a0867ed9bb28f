"""What a network and a store do wrong ends in a retry, or in one clear line; nothing half is seen."""

from __future__ import annotations

import errno
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

import siltstone as st
from siltstone.base import files
from siltstone.base.files import hdfs, objects
from siltstone.base.files.backups import restore_points
from siltstone.cli.main import run
from siltstone.commands.backup import BackupRequest, backup, restore
from tests.support.objects.faulty import (
    BUSY,
    CUT,
    DENIED,
    KEY,
    LOST,
    SHORT,
    SILENT,
    FaultyProxy,
    faulty_proxy,
)
from tests.support.objects.store import upload

DATA = bytes(range(256)) * 2_000
"""Of an object with a first piece and a rest."""


@pytest.fixture
def proxy(
    s3_url: str, bucket: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FaultyProxy]:
    """Between the code and the store, which gives up sooner than by default."""
    monkeypatch.setattr(objects, "RETRIES", 2)
    if "silent" in request.node.name:
        monkeypatch.setattr(objects, "REQUEST_SECONDS", 1.0)
    with faulty_proxy(s3_url) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        files.forget_options()
        yield proxy


@pytest.fixture
def large(store: Any, bucket: str) -> str:
    store.put("log", DATA)
    return f"s3://{bucket}/log"


def whole(path: str) -> bytes:
    with files.Reader(path) as reader:
        return reader.read(0, reader.stat.size)


@pytest.mark.parametrize("fault", [BUSY, CUT, SILENT, LOST])
def test_what_fails_for_a_moment_is_repeated(fault: str, proxy: FaultyProxy, large: str) -> None:
    monitored = ("GET", "/log")
    proxy.fail(fault, words=monitored)
    assert whole(large) == DATA
    assert proxy.met == 1
    with files.Reader(large) as reader:
        proxy.fail(fault, words=monitored)
        assert reader.read(100_000, 300_000) == DATA[100_000:400_000]
    assert proxy.met == 1
    proxy.fail(fault, words=monitored)
    assert files.read_bytes(large) == DATA
    proxy.fail(fault, words=("GET", "list-type"))
    assert len(files.entries(large.removesuffix("/log"))) == 1


@pytest.mark.parametrize("fault", [BUSY, CUT, SILENT, LOST, SHORT])
def test_what_keeps_failing_is_one_line(
    fault: str, proxy: FaultyProxy, large: str, capsys: pytest.CaptureFixture[str]
) -> None:
    # If a store says that a whole object is shorter, a read without a position cannot notice it.
    for read in (whole,) if fault == SHORT else (whole, files.read_bytes):
        proxy.fail(fault, words=("GET", "/log"), forever=True)
        with pytest.raises(OSError) as caught:
            read(large)
        assert caught.value.errno in (errno.EIO, errno.ECONNABORTED)
        assert str(caught.value.filename) == large
        assert "\n" not in str(caught.value.strerror)
        assert 0 < proxy.met <= 4
    proxy.fail()
    with files.Reader(large) as reader:
        proxy.fail(fault, words=("GET", "/log"), forever=True)
        with pytest.raises(OSError):
            reader.read(100_000, 300_000)
        proxy.fail()
        assert reader.read(100_000, 300_000) == DATA[100_000:400_000]
    if fault in (SHORT, SILENT):
        return
    proxy.fail(fault, forever=True)
    assert run(["get-offsets", "--dir", large.removesuffix("/log")]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "the store failed" in line


@pytest.mark.parametrize(
    ("fault", "reason"), [(KEY, "does not accept the credentials"), (DENIED, "the store does not allow it")]
)
def test_wrong_credentials_are_tried_once(
    fault: str, reason: str, proxy: FaultyProxy, large: str, capsys: pytest.CaptureFixture[str]
) -> None:
    proxy.fail(fault, words=("GET", "/log"), forever=True)
    with pytest.raises(OSError, match=reason) as caught:
        files.read_bytes(large)
    assert caught.value.errno == errno.EACCES
    assert proxy.met == 1
    proxy.fail(fault, words=("GET",), forever=True)
    assert run(["explain", large.removesuffix("/log"), "--engine", "process"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert reason in line


# Backups: whole or not there.


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    path = tmp_path / "logs"
    with st.open(path, mode="a") as opened:
        opened.topics.create("users", 1, {})
        opened.send("users", b"value")
    return path


@pytest.fixture
def target(bucket: str) -> Path:
    return Path(f"s3://{bucket}/backups")


@pytest.mark.parametrize(
    ("fault", "word"),
    [
        (LOST, "writer.json"),
        (LOST, "chunks"),
        (LOST, "/backups/backups"),
        (BUSY, "chunks"),
        (SILENT, "chunks"),
    ],
)
def test_a_put_whose_answer_is_lost_makes_a_backup_all_the_same(
    fault: str, word: str, proxy: FaultyProxy, logs: Path, target: Path, tmp_path: Path
) -> None:
    proxy.fail(fault, words=("PUT", word))
    result = backup(BackupRequest(directories=[logs], target=target))
    assert proxy.met == 1
    assert [point.backup_id for point in restore_points(target)] == [result.backup_id]
    restore(target, tmp_path / "restored")
    assert not files.exists(target / "writer.json")


def test_many_deletions_are_sent_little_by_little(
    proxy: FaultyProxy, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "DELETED_KEYS_MAX", 3)
    names = [f"s3://{bucket}/many/{number}" for number in range(8)]
    for name in names[1:]:
        files.put_new(name, b"x")
    proxy.fail(CUT, words=("POST", "delete"))
    with proxy.recording() as requests:
        files.delete_objects(names[:-1])
    assert proxy.met == 1
    assert len([request for request, _ in requests if "delete" in request]) == 3 + 1  # one was cut
    assert [entry.name for entry in files.entries(f"s3://{bucket}/many")] == ["7"]
    files.delete_objects([])


@pytest.mark.parametrize("word", ["writer.json", "chunks", "/backups/backups"])
def test_a_backup_that_fails_is_no_restore_point_and_blocks_no_other(
    word: str, proxy: FaultyProxy, logs: Path, target: Path, tmp_path: Path
) -> None:
    proxy.fail(BUSY, words=("PUT", word), forever=True)
    with pytest.raises(OSError, match="the store failed"):
        backup(BackupRequest(directories=[logs], target=target))
    proxy.fail()
    assert restore_points(target) == []
    backup(BackupRequest(directories=[logs], target=target))
    proxy.fail(CUT, words=("GET", "chunks"), forever=True)
    with pytest.raises(OSError, match="the store failed"):
        restore(target, tmp_path / "restored")
    assert not (tmp_path / "restored").exists()


def test_an_abandoned_upload_in_parts_is_seen_by_none_and_blocks_none(
    s3_url: str, bucket: str, store: Any, logs: Path, tmp_path: Path
) -> None:
    """Parts that a process has left which was killed within an upload."""
    upload(store, logs, "one")
    copy = f"s3://{bucket}/copy"
    expected = [record.value for record in st.open(f"s3://{bucket}/one")["users"]]
    for key in ("one/users-0/00000000000000009999.log", "one/new-0/00000000000000000000.log", "copy/part"):
        begun = httpx.post(f"{s3_url}/{bucket}/{key}?uploads")
        (number,) = re.findall("<UploadId>(.*)</UploadId>", begun.text)
        part = {"partNumber": "1", "uploadId": number}
        httpx.put(f"{s3_url}/{bucket}/{key}", params=part, content=bytes(5_000)).raise_for_status()
    with st.open(f"s3://{bucket}/one") as opened:
        assert [record.value for record in opened["users"]] == expected
        assert {topic_partition.topic for topic_partition in opened} == {"users"}
    with pytest.raises(FileNotFoundError):
        files.entries(copy)
    st.clean(f"s3://{bucket}/one", out=copy, topic="users", engine="process", force=True)
    restore(Path(copy), tmp_path / "restored")
    st.export(f"s3://{bucket}/one", f"s3://{bucket}/copy2", "parquet", "users")


class _Copying:
    """A store whose copies have another byte (``is_damaged``), or ETags that are no MD5 but look like it."""

    def __init__(self, store: Any, *, is_damaged: bool) -> None:
        self._store, self._is_damaged = store, is_damaged

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def copy(self, source: str, target: str) -> None:
        data = bytearray(self._store.get(source).bytes())
        data[len(data) // 2] ^= self._is_damaged
        self._store.put(target, bytes(data))

    def head(self, key: str) -> Any:
        facts = self._store.head(key)
        return facts if self._is_damaged else {**facts, "e_tag": f'"{hash(key) % 16**32:032x}"'}


@pytest.mark.parametrize("is_damaged", [True, False])
def test_a_copy_of_the_store_with_other_bytes_is_refused(
    is_damaged: bool, store: Any, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("one", DATA)
    monkeypatch.setattr(objects, "PART_BYTES", 100_000)
    monkeypatch.setattr(objects, "_store_of", lambda place: _Copying(store, is_damaged=is_damaged))
    root = f"s3://{bucket}"
    if is_damaged:
        with pytest.raises(OSError, match="copy has other bytes"):
            objects.copy_object(f"{root}/one", f"{root}/two", len(DATA))
        assert [str(row["path"]) for chunk in store.list() for row in chunk] == ["one"]
    else:
        objects.copy_object(f"{root}/one", f"{root}/two", len(DATA))
        assert bytes(store.get("two").bytes()) == DATA


class _HdfsThatIsGone:
    """A client of HDFS whose NameNode goes away within a put."""

    def __init__(self, *_: object) -> None:
        pass

    def create(self, *_: object) -> Any:
        raise OSError("the NameNode is in safe mode")

    def delete(self, *_: object) -> None:
        raise OSError("there is no NameNode any more")


def test_a_put_into_hdfs_raises_its_own_error_and_not_that_of_tidying_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    native = SimpleNamespace(Client=_HdfsThatIsGone, WriteOptions=dict)
    monkeypatch.setitem(sys.modules, "hdfs_native", native)
    with pytest.raises(OSError, match="safe mode"):
        hdfs.HdfsStore("hdfs://gone:1").put("key", b"data")
