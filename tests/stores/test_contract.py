"""What every store must do, asked of each server: the same tests, with nothing left out for any of them.

A directory of a real broker is read as on a disk; what is written is whole or not there; conditions hold;
what goes wrong is one line.
"""

from __future__ import annotations

import errno
import hashlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import siltstone as st
from demo.__main__ import NOW_MS
from siltstone.base import files
from siltstone.base.errors import BusyError
from siltstone.base.files import backups, objects
from siltstone.base.files.backups import restore_points
from siltstone.cli.main import run
from siltstone.commands.backup import BackupRequest, backup, restore
from tests.objects.test_reading import without_what_differs
from tests.support.objects.faulty import BUSY, CUT, LOST, MANY, FaultyProxy, faulty_proxy
from tests.support.objects.servers import Server
from tests.support.objects.store import upload
from tests.support.thoroughness import THOROUGH

NOW = f"--now-ms={NOW_MS}"
"""A cleaning writes its time into batches of tombstones."""
COMMANDS = {
    "topics": ["topics", "--describe", "--json", "--dir"],
    "offsets": ["get-offsets", "--json", "--dir"],
    "groups": ["groups", "--json", "--dir"],
    "explain": ["explain", "--engine", "process", NOW, "--json", "--dir"],
    "dry run": ["clean", "--dry-run", "--engine", "process", "--force", NOW, "--json", "--dir"],
    "dump": ["dump", "--print-data-log"],
}
COMMAND_OF_SERVER = {"s3proxy": "explain", "azurite": "dump", "google": "topics"}
"""The command that every run tries with a server of a kind; thorough runs try all commands with each."""


def printed(capfd: pytest.CaptureFixture[str], *arguments: str, root: str) -> str:
    assert run(list(arguments)) == 0, capfd.readouterr().err
    return without_what_differs(capfd.readouterr().out, root)


def contents(root: Path) -> dict[str, bytes]:
    paths = (path for path in sorted(root.rglob("*")) if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(root)): path.read_bytes() for path in paths}


def table(path: str | Path, topic: str, partition: int, view: str) -> Any:
    with st.open(path) as logs:
        return st.to_arrow(logs[topic, partition], view=view)


def keys(client: Any) -> list[str]:
    return sorted(str(row["path"]) for chunk in client.list() for row in chunk)


def test_commands_say_of_a_store_what_they_say_of_a_disk(
    server: Server,
    broker: Path,
    root: str,
    client: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Commands say of a real broker's directory what they say of it on a disk, and change nothing."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(objects, "WINDOW_BYTES", 64 << 10)
    monkeypatch.setattr(objects, "SMALL_BYTES", 8 << 10)
    monkeypatch.setattr(objects, "PIECE_BYTES", 4 << 10)
    upload(client, broker, "brokers/one")
    before = keys(client)
    segment = max(broker.rglob("*.log"), key=lambda path: path.stat().st_size).relative_to(broker)
    commands = COMMANDS if THOROUGH else (COMMAND_OF_SERVER.get(server.name.partition(" ")[0], "topics"),)
    for name in commands:
        words = COMMANDS[name]
        below = f"/{segment}" if name == "dump" else ""
        of_store, of_disk = (
            printed(capfd, *words, f"{place}{below}", root=place)
            for place in (f"{root}/brokers/one", str(broker))
        )
        assert of_store == of_disk, name
        assert len(of_disk) > 20, name
    for place in (("ledger", 1, "log"), ("users", 0, "latest")):
        assert table(f"{root}/brokers/one", *place) == table(broker, *place)
    assert keys(client) == before
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="session")
def cleaned_on_disk(small_broker: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a cleaned copy of the directory."""
    out = tmp_path_factory.mktemp("cleaned") / "disk"
    st.clean(small_broker, out=out, engine="process", force=True, all_topics=True, now_ms=NOW_MS)
    return contents(out)


def test_cleaning_into_a_copy_and_verifying_it(
    small_broker: Path, cleaned_on_disk: dict[str, bytes], root: str, client: Any, tmp_path: Path
) -> None:
    upload(client, small_broker, "before")
    report = st.clean(
        f"{root}/before",
        out=Path(f"{root}/after"),
        engine="process",
        force=True,
        all_topics=True,
        now_ms=NOW_MS,
    )
    assert {log.status for log in report.results} >= {"cleaned"}
    st.verify(f"{root}/before", f"{root}/after", engine="process").raise_for_errors()
    restore(Path(f"{root}/after"), tmp_path / "restored")
    assert contents(tmp_path / "restored") == cleaned_on_disk


def test_backup_and_restore(
    small_broker: Path, root: str, client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backups, "CHUNK_BYTES", 64 << 10)
    target = Path(f"{root}/backups/one")
    first = backup(BackupRequest(directories=[small_broker], target=target))
    again = backup(BackupRequest(directories=[small_broker], target=target, keep=1))
    assert first.new_chunks > 1
    assert again.new_chunks == 0
    assert [point.backup_id for point in restore_points(target)] == [again.backup_id]
    restore(target, tmp_path / "restored")
    assert contents(tmp_path / "restored") == contents(small_broker)
    assert not any("writer.json" in key for key in keys(client))


def test_an_export_of_parquet_has_the_rows_of_one_on_a_disk(
    broker: Path, root: str, client: Any, tmp_path: Path
) -> None:
    export = st.export(broker, f"{root}/lake/one", "parquet", "users")
    st.export(broker, tmp_path / "local", "parquet", "users")
    names = keys(client)
    assert "lake/one/_SUCCESS" in names
    assert len(names) == export.files + 1
    (tmp_path / "downloaded").mkdir()
    for key in names:
        (tmp_path / "downloaded" / Path(key).name).write_bytes(bytes(client.get(key).bytes()))
    order = [("partition", "ascending"), ("offset", "ascending")]
    of_store, of_disk = (pq.read_table(tmp_path / name).sort_by(order) for name in ("downloaded", "local"))
    assert of_store == of_disk


def test_an_object_is_put_only_if_there_is_none(root: str, client: Any) -> None:
    """An object is put only if there is none; one that was replaced is not read on."""
    assert files.put_new(f"{root}/one/x", b"first")
    assert not files.put_new(f"{root}/one/x", b"other")
    assert bytes(client.get("one/x").bytes()) == b"first"
    assert files.read_bytes(f"{root}/one/x") == b"first"


def test_of_two_writers_of_a_backup_one_is_refused(
    small_broker: Path, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, errors = Path(f"{root}/backups"), list[BusyError]()
    put, first = backups.put_new, threading.Lock()

    def putting(path: Path, data: bytes) -> bool:
        if first.acquire(blocking=False):
            with pytest.raises(BusyError) as caught:
                backup(BackupRequest(directories=[small_broker], target=target))
            errors.append(caught.value)
        return put(path, data)

    monkeypatch.setattr(backups, "put_new", putting)
    backup(BackupRequest(directories=[small_broker], target=target))
    assert len(errors) == 1
    assert len(restore_points(target)) == 1


def test_of_many_writers_one_claims_a_name(server: Server, root: str) -> None:
    """Of writers that come at one time, one gets it."""
    if not server.is_atomic:
        pytest.skip(f"{server.name} looks and puts in two steps: two that come at one time may both get it")
    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(lambda number: files.claim(f"{root}/lock", b"%d" % number), range(8)))
    assert won.count(True) == 1
    assert files.read_bytes(f"{root}/lock") == b"%d" % won.index(True)


@pytest.mark.parametrize("size", [100, 300_000])
def test_an_object_that_is_replaced_while_it_is_read(
    size: int, root: str, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its replacement may have the same size, and its status may have come from a list."""
    monkeypatch.setattr(objects, "WINDOW_BYTES", 64 << 10)
    monkeypatch.setattr(objects, "SMALL_BYTES", 8 << 10)
    monkeypatch.setattr(objects, "PIECE_BYTES", 50)
    client.put("log", b"a" * size)
    listed = objects.list_keys(root)[0]["log"]
    assert listed == objects.head(f"{root}/log")._replace(etag=listed.etag)
    assert listed.number == objects.head(f"{root}/log").number
    with files.Reader(f"{root}/log") as reader:
        assert reader.read(0, 10) == b"a" * 10
        windows = objects.Windows(f"{root}/log", listed)
        client.put("log", b"b" * size)
        for read in (lambda: reader.read(60, size - 60), lambda: _whole(windows, size)):
            with pytest.raises(OSError, match="replaced while it was read") as caught:
                read()
            assert caught.value.errno == errno.ESTALE
    assert objects.head(f"{root}/log").number != listed.number
    assert files.read_bytes(f"{root}/log") == b"b" * size


def _whole(windows: objects.Windows, size: int) -> bytes:
    import numpy as np

    buffer = np.zeros(size, np.uint8)
    windows.read_into(buffer, 0)
    return buffer.tobytes()


@pytest.mark.timeout(1_200)  # Azurite's page has 5,000
def test_more_keys_than_a_page_of_a_list(server: Server, root: str, client: Any) -> None:
    """Lists come whole, and so do deletions, also of what is not there."""
    is_short = (
        server.name.startswith("s3proxy") or server.page_keys < 1_000 or THOROUGH
    )  # the others are slow: when thorough they have more than a page, and than Azure's 256 of a deletion
    names = [f"{number:05}" for number in range(server.page_keys + 30 if is_short else 40)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: client.put(f"many/one/{name}", b"x"), names))
    assert [entry.name for entry in files.entries(f"{root}/many/one")] == names
    assert sorted(key for key, _ in files.objects_below(f"{root}/many")) == [f"one/{name}" for name in names]
    (folder,) = files.entries(f"{root}/many")
    assert (folder.name, folder.is_directory) == ("one", True)
    # Azurite looks through all objects for each that it deletes: 300 are more than Azure's 256 of a request.
    deleted = names[5:] if server.page_keys <= 1_000 else names[5:305]
    files.delete_objects([f"{root}/many/one/{name}" for name in ["none", *deleted]])
    remaining = sorted(set(names).difference(deleted))
    assert [entry.name for entry in files.entries(f"{root}/many/one")] == remaining


NAMES = ["plain", "a b", "a+b", "a%20b", "ä-ö", "a=b&c", "x#y", "q?r", ".hidden", "UPPER"]


def test_a_name_may_have_any_characters(root: str) -> None:
    for name in NAMES:
        assert files.put_new(f"{root}/names/{name}", name.encode())
    assert sorted(entry.name for entry in files.entries(f"{root}/names")) == sorted(NAMES)
    for name in NAMES:
        assert files.read_bytes(f"{root}/names/{name}") == name.encode()
    files.delete_objects([f"{root}/names/{name}" for name in NAMES])
    assert not files.exists(f"{root}/names")


def test_a_missing_object_is_an_error_and_an_empty_one_is_not(root: str, client: Any) -> None:
    client.put("empty", b"")
    assert files.read_bytes(f"{root}/empty") == b""
    with files.Reader(f"{root}/empty") as reader:
        assert reader.read(0, 10) == b""
    assert not files.exists(f"{root}/none")
    for read in (files.read_bytes, files.stat, files.entries, files.Reader):
        with pytest.raises(FileNotFoundError):
            read(f"{root}/none")
    files.delete_objects([f"{root}/none"])


def test_a_large_object_is_put_in_parts_and_copied_by_the_store(
    root: str, client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In parts, compared, and copied by the store."""
    monkeypatch.setattr(objects, "PART_BYTES", 5 << 20)
    data = bytes(range(256)) * (21 << 10)
    (tmp_path / "large").write_bytes(data)
    files.put_file(tmp_path / "large", f"{root}/large")
    files.copy_object(f"{root}/large", f"{root}/copies/large", len(data))
    for key in ("large", "copies/large"):
        assert bytes(client.get(key).bytes()) == data
    with pytest.raises(FileNotFoundError):
        files.copy_object(f"{root}/none", f"{root}/copies/none", 1)
    assert not files.exists(f"{root}/copies/none")


def test_what_an_etag_tells_of_the_bytes(server: Server, root: str, client: Any) -> None:
    """Where it is no MD5, a copy that the store makes is compared by its size (docs/objects.md)."""
    files.put_new(f"{root}/one", b"bytes")
    etag = objects.head(f"{root}/one").etag or ""
    is_md5 = etag.strip('"') == hashlib.md5(b"bytes").hexdigest()
    assert is_md5 == (server.name not in ("azurite", "hdfs"))
    if server.name == "azurite":  # it keeps a Content-MD5; if obstore gave it, it could be compared
        assert set(client.head("one")) == {"path", "last_modified", "size", "e_tag", "version"}
        assert not any("md5" in str(name).lower() for name in client.get("one").attributes)


@pytest.fixture
def proxy(server: Server, bucket: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyProxy]:
    """Between the code and the store, which is asked less often than by default."""
    if not server.endpoint:
        pytest.skip("of HDFS in test_hdfs.py: its client finds more servers than a proxy stands before")
    monkeypatch.setattr(objects, "RETRIES", 1)
    with faulty_proxy(server.url) as proxy:
        url = server.environment[server.endpoint].replace(server.url, proxy.url)
        monkeypatch.setenv(server.endpoint, url)
        files.forget_options()
        yield proxy


def _calls(root: str) -> dict[str, Callable[[], object]]:
    return {
        "get": lambda: files.read_bytes(f"{root}/one/x") == b"data",
        "head": lambda: files.stat(f"{root}/one/x").size == 4,
        "list": lambda: [entry.name for entry in files.entries(f"{root}/one")] == ["x"],
        "put": lambda: files.put_own(f"{root}/two/y", b"data"),
        "copy": lambda: files.copy_object(f"{root}/one/x", f"{root}/two/z", 4) is None,
        "delete": lambda: files.delete_objects([f"{root}/two/y"]) is None,
    }


@pytest.mark.parametrize("fault", [BUSY, MANY, CUT, LOST])
def test_what_fails_for_a_moment_is_asked_again(
    fault: str, root: str, client: Any, proxy: FaultyProxy
) -> None:
    """Also a put and a copy that succeeded, and whose answers got lost."""
    client.put("one/x", b"data")
    for name, call in _calls(root).items():
        if name == "delete" and fault in (CUT, LOST):
            continue  # one that is not there any more is an answer, too
        proxy.fail(fault, words=())
        assert call(), name
        assert proxy.met == 1, name
    assert bytes(client.get("two/z").bytes()) == b"data"


def test_a_store_that_stays_busy_is_one_line(root: str, client: Any, proxy: FaultyProxy) -> None:
    client.put("one/x", b"data")
    for name, call in _calls(root).items():
        proxy.fail(BUSY, words=(), forever=True)
        with pytest.raises(OSError, match="the store failed") as caught:
            call()
        assert "\n" not in str(caught.value), name
    proxy.fail()
    assert [row["path"] for chunk in client.list() for row in chunk] == ["one/x"]


def test_an_upload_that_is_abandoned_shows_nothing_and_stands_in_no_way(
    root: str, client: Any, tmp_path: Path, proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the process had been killed after any request."""
    monkeypatch.setattr(objects, "PART_BYTES", 5 << 20)
    monkeypatch.setattr(objects, "RETRIES", 0)
    (tmp_path / "large").write_bytes(b"x" * (11 << 20))
    for step in range(4) if THOROUGH else (2, 3):
        files.forget_options()
        proxy.die_after(step)
        with pytest.raises(OSError, match="the store failed"):
            files.put_file(tmp_path / "large", f"{root}/put/large")
        assert not [key for key in keys(client) if key.startswith("put")]
    proxy.live()
    files.forget_options()
    files.put_file(tmp_path / "large", f"{root}/put/large")
    assert client.head("put/large")["size"] == 11 << 20


@pytest.fixture
def wrong(server: Server, bucket: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if server.wrong is None:
        pytest.skip(f"{server.name} asks for no credentials")
    for variable, value in server.wrong.items():
        monkeypatch.setenv(variable, value)
    files.forget_options()
    yield


@pytest.mark.usefixtures("wrong")
def test_wrong_credentials_are_an_error_of_one_line(
    root: str, broker: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for call in (
        lambda: files.read_bytes(f"{root}/x"),
        lambda: files.entries(f"{root}/x"),
        lambda: files.stat(f"{root}/x"),
        lambda: files.put_new(f"{root}/x", b"x"),
    ):
        with pytest.raises(OSError) as caught:
            call()
        assert caught.value.errno == errno.EACCES, caught.value
    for words in (["explain", f"{root}/x", "--engine", "process"], ["backup", str(broker), f"{root}/x"]):
        assert run(words) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert "credentials" in line or "does not allow" in line


def test_a_missing_bucket_is_a_missing_directory(server: Server, root: str, broker: Path) -> None:
    missing = server.address("nosuchbucket")
    with pytest.raises(OSError) as caught:
        files.entries(f"{missing}/x")
    assert caught.value.errno == errno.ENOENT
    if server.name == "hdfs":
        return  # which makes directories
    with pytest.raises(OSError) as caught:
        backup(BackupRequest(directories=[broker], target=Path(f"{missing}/x")))
    assert caught.value.errno == errno.ENOENT
