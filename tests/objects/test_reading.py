"""Commands on a bucket say what they say of the same files on a disk."""

from __future__ import annotations

import errno
import hashlib
import json
import shutil
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import siltstone as st
from siltstone.base import files
from siltstone.base.errors import DirectoryRefusedError
from siltstone.base.files import objects
from siltstone.base.files.objects import SMALL_BYTES
from siltstone.cli.main import run
from tests.support.objects.store import upload
from tests.support.thoroughness import few

WINDOW_BYTES = 2 << 20
"""Less than there is by default, so that large objects are small ones."""
COMMANDS = {
    "topics": ["topics", "--describe", "--json"],
    "offsets": ["get-offsets", "--json"],
    "explain": ["explain", "--engine", "process", "--json"],
    "dry run": ["clean", "--dry-run", "--engine", "process", "--force", "--json"],
    "groups": ["groups", "--json"],
    "log dirs": ["log-dirs", "--describe", "--json"],
    "records": ["consume", "--topic", "users", "-e"],
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log directory with a compacted topic of several segments, stopped in order."""
    path = tmp_path_factory.mktemp("broker") / "logs"
    with st.open(path, mode="a") as logs:
        logs.topics.create("users", 2, {"cleanup.policy": "compact", "segment.bytes": "20000"})
        logs.topics.create("events", 1, {})
        for number in range(900):
            logs.send("users", b"value %d" % number, key=b"%d" % (number % 97))
        logs.send("events", b"event")
    return path


@pytest.fixture(autouse=True)
def _small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "WINDOW_BYTES", WINDOW_BYTES)


@pytest.fixture
def uploaded(store: Any, bucket: str, directory: Path) -> str:
    upload(store, directory, "brokers/one")
    return f"s3://{bucket}/brokers/one"


def without_what_differs(text: str, root: str) -> str:
    """The output without paths, times and run names."""
    try:
        document = json.loads(text)
    except ValueError:
        return text.replace(root, "ROOT")

    def cleared(value: Any) -> Any:
        if isinstance(value, dict):
            return {
                name: cleared(inner)
                for name, inner in value.items()
                if not name.endswith(("_ms", "seconds", "_s"))
                and name not in ("run", "run_id", "usableBytes")
            }
        if isinstance(value, list):
            return [cleared(inner) for inner in value]
        return (
            value.replace(root, "ROOT").replace(root.replace("//", "/"), "ROOT")
            if isinstance(value, str)
            else value
        )

    return json.dumps(cleared(document), indent=1)


@pytest.mark.parametrize("command", few([(command,) for command in COMMANDS], 2, 6))
def test_a_command_says_the_same_of_a_bucket(
    command: str,
    uploaded: str,
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    def output_of(*arguments: str) -> str:
        assert run(list(arguments)) == 0
        return capfd.readouterr().out

    monkeypatch.chdir(tmp_path)
    of_bucket, of_disk = (
        without_what_differs(output_of(*COMMANDS[command], "--dir", root), root)
        for root in (uploaded, str(directory))
    )
    assert of_bucket == of_disk
    assert len(of_disk) > 20
    assert list(tmp_path.iterdir()) == []


def test_programs_read_records_and_clean_into_a_copy(uploaded: str, directory: Path, tmp_path: Path) -> None:
    with st.open(uploaded) as logs, st.open(directory) as local:
        assert [record.value for record in logs["users"]] == [record.value for record in local["users"]]
    st.clean(uploaded, topic="users", out=tmp_path / "of-bucket", engine="process", force=True)
    st.clean(directory, topic="users", out=tmp_path / "of-disk", engine="process", force=True)
    for path in sorted((tmp_path / "of-disk").rglob("*.log")):
        other = tmp_path / "of-bucket" / path.relative_to(tmp_path / "of-disk")
        assert other.read_bytes() == path.read_bytes()
    st.verify(uploaded, tmp_path / "of-bucket", engine="process").raise_for_errors()


@pytest.mark.parametrize(
    "change",
    [
        lambda path: st.open(path, mode="a"),
        lambda path: st.clean(path, in_place=True, engine="process"),
    ],
    ids=["open", "clean"],
)
def test_nothing_is_changed_in_a_bucket_nor_in_a_folder_of_its_name(
    change: Callable[[str], object],
    uploaded: str,
    store: Any,
    bucket: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "s3:" / bucket / "brokers" / "one").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    before = [(row["path"], row["e_tag"]) for chunk in store.list() for row in chunk]
    with pytest.raises(DirectoryRefusedError, match="only read"):
        change(uploaded)
    assert [(row["path"], row["e_tag"]) for chunk in store.list() for row in chunk] == before
    assert list((tmp_path / "s3:" / bucket / "brokers" / "one").iterdir()) == []


@pytest.mark.parametrize(
    "operation",
    [
        lambda path: files.write_new(path, b"x"),
        lambda path: files.replace(path, b"x"),
        files.unlink,
        lambda path: files.make_directory(path, parents=True),
        lambda path: files.rename(path, f"{path}2"),
        files.remove_tree,
        files.Appender,
        files.Lock,
    ],
)
def test_every_change_of_files_refuses_a_path_of_a_store(
    operation: Callable[[str], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OSError):
        operation("s3://bucket/key")
    assert list(tmp_path.iterdir()) == []


def test_windows_give_the_bytes_of_any_place(store: Any, bucket: str) -> None:
    data = np.random.default_rng(1).integers(0, 256, 3 * WINDOW_BYTES + 12_345, np.uint8)
    store.put("large", data.tobytes())
    with files.Reader(f"s3://{bucket}/large") as reader:
        assert reader.stat.size == len(data)
        position, buffer = 0, np.empty(1_000_000, np.uint8)
        while count := reader.read_into(buffer, position):
            assert (buffer[:count] == data[position : position + count]).all()
            position += count
        assert position == len(data)
        assert reader.windows is not None
        assert reader.windows.requests <= 6
    with files.Reader(f"s3://{bucket}/large") as reader:
        for at in (2 * WINDOW_BYTES, 5, len(data) - 3, WINDOW_BYTES - 2, SMALL_BYTES, 0):
            assert reader.read(at, 100) == data[at : at + 100].tobytes()
        assert reader.read(len(data), 10) == b""
        assert reader.read(len(data) + 5, 10) == b""


def test_the_checksum_of_a_large_object_does_not_take_its_size_in_memory(
    store: Any, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = np.random.default_rng(2).integers(0, 256, 2 * WINDOW_BYTES, np.uint8).tobytes()
    monkeypatch.setattr(files, "_COPY_BYTES", 100_000)
    monkeypatch.setattr(objects, "WINDOW_BYTES", 1 << 20)
    largest, get = 0, objects.Windows._get

    def counted(windows: objects.Windows, start: int, end: int) -> memoryview:
        nonlocal largest
        largest = max(largest, end - start)
        return get(windows, start, end)

    monkeypatch.setattr(objects.Windows, "_get", counted)
    for name, content in {"large": data, "small": b"small", "empty": b""}.items():
        store.put(name, content)
        assert files.sha256(f"s3://{bucket}/{name}") == hashlib.sha256(content).hexdigest()
    assert 0 < largest <= 1 << 20


def test_two_threads_may_read_one_object(store: Any, bucket: str) -> None:
    data = np.random.default_rng(9).integers(0, 256, 3 * SMALL_BYTES, np.uint8).tobytes()
    store.put("large", data)

    class InTwoThreads(objects.Windows):
        """Lets another thread read just after this one has fetched a window, if it can."""

        other: threading.Thread | None = None

        def _fetch(self, at: int, size: int) -> None:
            super()._fetch(at, size)
            if at == SMALL_BYTES:
                self.other = threading.Thread(target=read, args=(SMALL_BYTES + 66_000, 100_000))
                self.other.start()
                self.other.join(0.2)

    windows, parts = InTwoThreads(f"s3://{bucket}/large"), dict[int, bytes]()

    def read(position: int, size: int) -> None:
        buffer = np.empty(size, np.uint8)
        assert windows.read_into(buffer, position) == size
        parts[position] = buffer.tobytes()

    read(SMALL_BYTES, 1_000)
    assert windows.other is not None
    windows.other.join()
    assert len(parts) == 2
    assert all(part == data[at : at + len(part)] for at, part in parts.items())


def test_an_object_that_is_replaced_while_it_is_read_is_an_error(store: Any, bucket: str) -> None:
    store.put("log", bytes(4 * WINDOW_BYTES))
    with files.Reader(f"s3://{bucket}/log") as reader:
        assert reader.read(0, 10) == bytes(10)
        store.put("log", b"\1" * (4 * WINDOW_BYTES))
        with pytest.raises(OSError, match="replaced") as caught:
            reader.read(4 * WINDOW_BYTES - 10, 10)
        assert caught.value.errno == errno.ESTALE


@pytest.mark.long  # a thousand puts
def test_more_keys_than_one_answer_of_the_store_has_are_all_listed(store: Any, bucket: str) -> None:
    for number in range(1_005):
        store.put(f"many/{number:05d}", b"")
    store.put("many/below/key", b"x")
    store.put("many/", b"")  # the marker of a console
    listed = files.entries(f"s3://{bucket}/many")
    assert len(listed) == 1_006
    assert [entry.name for entry in listed if entry.is_directory] == ["below"]
    assert files.is_directory(f"s3://{bucket}/many/below")
    assert not files.is_directory(f"s3://{bucket}/many/00001")
    assert files.exists(f"s3://{bucket}/many/00001")
    assert not files.exists(f"s3://{bucket}/man")


def test_what_a_store_refuses_is_one_clear_line(
    bucket: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["topics", "--list", "s3://missing-bucket/broker"]) == 1
    assert "no such bucket" in capsys.readouterr().err
    assert run(["topics", "--list", f"s3://{bucket}/nothing"]) == 1
    assert f"s3://{bucket}/nothing: no such directory" in capsys.readouterr().err
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a secret that nobody may see")
    assert run(["topics", "--list", "s3://missing-bucket/broker"]) == 1
    assert "secret" not in capsys.readouterr().err


def test_only_a_path_with_the_scheme_of_a_store_is_an_object(tmp_path: Path) -> None:
    for path in (
        tmp_path / "s3:" / "bucket",
        "/s3://bucket/key",
        "./s3:/bucket",
        "s3:",
        "s4://bucket/key",
        "x",
    ):
        assert not files.is_object(path)
    for path in ("s3://bucket/key", Path("s3://bucket/key"), "gs://b", "abfss://c@a/k", "az://c/k"):
        assert files.is_object(path)
    shutil.rmtree(tmp_path)


def test_a_read_takes_few_requests(
    store: Any, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many windows as 400 MB have by default: at most 60 requests, and one list for restore points."""
    window = 128 << 10
    monkeypatch.setattr(objects, "WINDOW_BYTES", window)
    monkeypatch.setattr(objects, "SMALL_BYTES", 16 << 10)
    monkeypatch.setattr(objects, "PIECE_BYTES", 8 << 10)
    with st.open(tmp_path / "logs", mode="a") as logs:
        logs.topics.create("users", 1, {})
        random = np.random.default_rng(28)
        for _ in range(50):
            values = random.integers(0, 256, (64, 1_000), np.uint8)
            logs.send_many("users", [st.NewRecord(value=value.tobytes()) for value in values])
    upload(store, tmp_path / "logs", "one")
    (size,) = (path.stat().st_size for path in (tmp_path / "logs").rglob("*.log"))
    assert 24 <= size / window <= 400e6 / (16 << 20) + 1
    requests, of = list[str](), objects._store_of

    class Counted:
        def __init__(self, opened: Any) -> None:
            self._opened = opened

        def __getattr__(self, name: str) -> Any:
            requests.append(name)
            return getattr(self._opened, name)

    monkeypatch.setattr(objects, "_store_of", lambda place: Counted(of(place)))
    with st.open(f"s3://{bucket}/one") as logs:
        assert sum(1 for _ in logs["users"]) == 50 * 64
    assert len(requests) <= 60, Counter(requests)
