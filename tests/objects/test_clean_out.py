"""A cleaned copy in a bucket: what a copy on a disk has, one version or the other, and nothing half."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import siltstone as st
from siltstone.base import files
from siltstone.base.errors import BusyError, DirectoryRefusedError, UsageError
from siltstone.base.files import backups as stored
from siltstone.base.files import objects
from siltstone.base.files.backups import BackedUpFile, restore_points
from siltstone.cli.main import run
from siltstone.commands.backup import BackupRequest, backup, restore
from siltstone.commands.clean import CleanRequest, clean
from siltstone.compaction import putting
from siltstone.compaction.engine import InProcessEngine
from siltstone.compaction.inplace.stored_copy import FileToPut
from siltstone.compaction.putting import ChunkStore, put_file
from tests.support.objects.faulty import BUSY, CHANGED, DENIED, LOST, FaultyProxy, faulty_proxy
from tests.support.objects.store import upload
from tests.support.thoroughness import THOROUGH, few

KEYS, CHUNK_BYTES = 97, 16_384


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What ``logs`` is a copy of."""
    path = tmp_path_factory.mktemp("original") / "logs"
    with st.open(path, mode="a") as opened:
        opened.topics.create("users", 1, {"cleanup.policy": "compact", "segment.bytes": "20000"})
        opened.topics.create("events", 1, {})
        for number in range(600):
            opened.send("users", b"value %d" % number, key=b"%d" % (number % KEYS))
        opened.send("events", b"event")
    return path


@pytest.fixture
def logs(original: Path, tmp_path: Path) -> Path:
    """A log directory, stopped in order, with a compacted topic of several segments and another one."""
    return shutil.copytree(original, tmp_path / "logs")


@pytest.fixture
def target(bucket: str) -> Path:
    return Path(f"s3://{bucket}/cleaned/one")


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "CHUNK_BYTES", CHUNK_BYTES)


@pytest.fixture
def proxy(s3_url: str, bucket: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyProxy]:
    monkeypatch.setattr(objects, "RETRIES", 1)
    with faulty_proxy(s3_url) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        files.forget_options()
        yield proxy


def cleaned(source: str | Path, out: Path, **options: Any) -> Any:
    return st.clean(source, out=out, engine="process", force=True, **options)


def contents(root: Path) -> dict[str, bytes]:
    paths = (path for path in sorted(root.rglob("*")) if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(root)): path.read_bytes() for path in paths}


def keys(store: Any) -> list[str]:
    return sorted(str(row["path"]) for chunk in store.list() for row in chunk)


def latest(path: str | Path) -> dict[bytes, bytes]:
    with st.open(path) as opened:
        return {record.key: record.value for record in opened["users"]}


def test_a_copy_in_a_bucket_has_the_bytes_of_a_copy_on_a_disk(
    logs: Path, target: Path, tmp_path: Path, bucket: str
) -> None:
    on_disk, in_bucket = cleaned(logs, tmp_path / "disk"), cleaned(logs, target)
    assert [log.records_after for log in in_bucket.results] == [log.records_after for log in on_disk.results]
    assert not restore(target, tmp_path / "restored").needs_recovery
    assert contents(tmp_path / "restored") == contents(tmp_path / "disk")
    (point,) = restore_points(target)
    assert str(in_bucket.out) == f"s3://{bucket}/cleaned/one/@{point.backup_id}"
    for path in (target, in_bucket.out):
        st.verify(logs, path, engine="process").raise_for_errors()
        assert latest(path) == latest(tmp_path / "disk")
    assert not files.exists(target / "writer.json")
    with st.open(tmp_path / "restored", mode="a") as opened:
        opened.send("users", b"goes on", key=b"0")


class OnExecutors(InProcessEngine):
    """As an engine whose tasks run on other machines: each puts the new segments that it writes."""

    has_executors = True

    def put_files(self, store: ChunkStore, to_put: Sequence[FileToPut]) -> list[BackedUpFile]:
        writer = store.writer()
        return [put_file(Path(file.source), file.name, writer) for file in to_put]


@pytest.mark.parametrize("fault", [None, DENIED])
def test_tasks_put_the_segments_that_they_write(
    fault: str | None,
    logs: Path,
    target: Path,
    tmp_path: Path,
    proxy: FaultyProxy,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Into folders of their own: the one of this process stays empty. If one cannot put, its log fails."""
    cleaned(logs, target)
    executors, copy = tmp_path / "executors", target.with_name("there")
    executors.mkdir()
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{executors},{tmp_path}/second")
    written, put = list[str](), putting.put_file
    monkeypatch.setattr(putting, "put_file", lambda path, *of: (written.append(str(path)), put(path, *of))[1])
    if fault is not None:
        proxy.fail(fault, words=("PUT", "there/chunks"))
    request = CleanRequest(directories=[logs], out=copy, force=True, topics=["users"], spill_dir=tmp_path)
    (result,) = clean(request, engine=lambda *_: OnExecutors()).results
    assert list(executors.iterdir()) == []
    assert written and all(path.startswith(f"{executors}/siltstone-new-") for path in written)
    if fault is None:
        assert result.status == "cleaned"
        assert contents_of(copy) == contents_of(target)
    else:
        assert result.status == "failed" and "does not allow" in result.reason
        assert latest(copy) == latest(logs)


def test_commands_read_a_copy_as_a_directory(
    logs: Path, target: Path, bucket: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"s3://{bucket}/cleaned/one"
    assert run(["clean", str(logs), "--out", url, "--all-topics", "--engine", "process", "--json"]) == 0
    out = json.loads(capsys.readouterr().out)["out"]
    assert run(["explain", url, "--engine", "process", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["logs"]) == 2
    assert run(["verify", str(logs), url, "--engine", "process"]) == 0
    assert run(["topics", "--list", url]) == 0
    assert capsys.readouterr().out.split()[-2:] == ["events", "users"]
    (segment, *_) = [name for name in files.list_files(f"{out}/users-0") if name.endswith(".log")]
    assert run(["dump", f"{out}/users-0/{segment}"]) == 0
    assert "Log starting offset" in capsys.readouterr().out
    assert run(["dump", f"{out}/users-0"]) == run(["dump", str(logs / "users-0")])
    st.export(url, tmp_path / "latest", "parquet", "users", view="latest")
    assert pq.read_table(tmp_path / "latest").num_rows == KEYS


def test_a_second_copy_takes_the_place_of_the_first_as_a_whole(logs: Path, target: Path) -> None:
    first = cleaned(logs, target)
    with st.open(target) as before:
        with st.open(logs, mode="a") as opened:
            for number in range(KEYS):
                opened.send("users", b"second", key=b"%d" % number)
        second = cleaned(logs, target)
        assert {record.value for record in before["users"]}.isdisjoint({b"second"})
    assert b"second" not in latest(first.out).values()
    assert set(latest(target).values()) == set(latest(second.out).values()) >= {b"second"}
    assert len(restore_points(target)) == 2


def test_a_copy_of_objects_or_of_a_restore_point_is_that_of_the_disk(
    logs: Path, target: Path, store: Any, bucket: str, tmp_path: Path, proxy: FaultyProxy
) -> None:
    upload(store, logs, "plain")
    cleaned(logs, tmp_path / "disk")
    cleaned(f"s3://{bucket}/plain", target)
    restore(target, tmp_path / "of-objects")
    assert contents(tmp_path / "of-objects") == contents(tmp_path / "disk")
    backed_up = Path(f"s3://{bucket}/backup")
    backup(BackupRequest(directories=[logs], target=backed_up))
    monitored = Path(f"s3://{bucket}/cleaned/two")
    with proxy.recording() as requests:
        cleaned(backed_up, monitored)
    restore(monitored, tmp_path / "of-backup")
    assert contents(tmp_path / "of-backup") == contents(tmp_path / "disk")
    # What the cleaning leaves as it is, the store copies.
    (event,) = (logs / "events-0").glob("*.log")
    assert files.stored_chunks(files.newest_stored(monitored) / "events-0" / event.name)
    assert any("x-amz-copy-source" in headers for _, headers in requests)
    # Into its own prefix: a restore point more, nothing is copied.
    before = len(restore_points(backed_up))
    cleaned(backed_up, backed_up)
    assert len(restore_points(backed_up)) == before + 1
    assert latest(backed_up) == latest(monitored)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (
            lambda logs, url: st.clean(url, in_place=True, engine="process"),
            DirectoryRefusedError,
            "only read",
        ),
        (lambda logs, url: cleaned(logs, Path(f"{url}/@20260101T000000Z")), UsageError, "within"),
        (lambda logs, url: cleaned(logs, Path(url)), UsageError, "other objects"),
        (lambda logs, url: cleaned(url, Path(f"{url}/below")), UsageError, "inside"),
        (
            lambda logs, url: cleaned(logs, Path(f"{url}-new"), report=Path(f"{url}-report")),
            UsageError,
            "--report",
        ),
        (lambda logs, url: cleaned(logs, Path("disk"), take_over=True), UsageError, "--take-over"),
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
    upload(store, logs, "plain")
    before, local = keys(store), sorted(tmp_path.iterdir())
    with pytest.raises(error, match=words):
        change(logs, f"s3://{bucket}/plain")
    assert keys(store) == before
    assert sorted(tmp_path.iterdir()) == local


def test_a_dry_run_puts_nothing(logs: Path, target: Path, store: Any) -> None:
    assert cleaned(logs, target, dry_run=True).out is None
    assert keys(store) == []


def test_a_second_writer_of_a_copy_is_refused(
    logs: Path, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(logs, tmp_path / "others")
    put, errors, first = stored.put_new, list[str](), threading.Lock()

    def putting(path: Path, data: bytes) -> bool:
        if first.acquire(blocking=False):
            with pytest.raises(BusyError) as caught:
                cleaned(tmp_path / "others", target)
            errors.append(str(caught.value))
        return put(path, data)

    monkeypatch.setattr(stored, "put_new", putting)
    cleaned(logs, target)
    assert errors
    assert len(restore_points(target)) == 1


@pytest.mark.random
def test_a_run_that_dies_at_any_request_leaves_the_copy_before(
    logs: Path, target: Path, tmp_path: Path, proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    cleaned(logs, target)
    before = contents_of(target)
    with st.open(logs, mode="a") as opened:
        for number in range(KEYS):
            opened.send("users", b"second", key=b"%d" % number)
    cleaned(logs, tmp_path / "disk")
    step, copies_after_crashes, after = 0, list[dict[str, bytes]](), contents(tmp_path / "disk")
    while True:
        proxy.die_after(step)
        try:
            cleaned(logs, target, take_over=True)
            break
        except OSError:
            proxy.live()
            files.forget_options()  # and the connections
            copies_after_crashes.append(contents_of(target))
            step += 1 if THOROUGH else 1 + step // 3
    proxy.live()
    assert len(restore_points(target)) == 2 + copies_after_crashes.count(after)
    assert contents_of(target) == after
    assert all(copy in (before, after) for copy in copies_after_crashes)
    assert copies_after_crashes.count(before) > 5


def contents_of(path: Path) -> dict[str, bytes]:
    """All files of the directory that a prefix means."""
    root = files.newest_stored(path)

    def below(folder: Path) -> Iterator[Path]:
        for entry in files.entries(folder):
            yield from below(folder / entry.name) if entry.is_directory else (folder / entry.name,)

    return {str(path.relative_to(root)): files.read_bytes(path) for path in below(root)}


@pytest.mark.parametrize(
    ("fault", "words", "is_made"),
    few(
        [
            (BUSY, ("PUT", "chunks"), True),
            (LOST, ("PUT", "chunks"), True),
            (LOST, ("PUT", "backups/"), True),
            (LOST, ("PUT", "writer.json"), True),
            (CHANGED, ("PUT", "chunks"), False),
            (DENIED, ("PUT", "chunks"), False),
            (DENIED, ("PUT", "backups/"), False),
            (DENIED, ("PUT", "writer.json"), False),
        ],
        *(1, 4, 6),
    ),
)
def test_a_request_that_fails_is_repeated_or_ends_the_run(
    fault: str,
    words: tuple[str, ...],
    is_made: bool,
    logs: Path,
    target: Path,
    proxy: FaultyProxy,
    tmp_path: Path,
) -> None:
    proxy.fail(fault, words=words)
    if is_made:
        cleaned(logs, target)
        restore(target, tmp_path / "restored")
        assert latest(tmp_path / "restored") == latest(target)
    elif "chunks" in words:  # of a log that fails the copy has what it was
        outcome = cleaned(logs, target)
        (failed,) = [log for log in outcome.results if log.status == "failed"]
        assert ("other bytes" if fault == CHANGED else "does not allow") in failed.reason
        assert latest(target) == latest(logs)
    else:
        with pytest.raises(OSError, match="does not allow"):
            cleaned(logs, target)
        assert restore_points(target) == []
    assert proxy.met == 1
    cleaned(logs, target)  # nothing stands in its way, and no damaged chunk stays
    st.verify(logs, target, engine="process").raise_for_errors()


@pytest.mark.parametrize("damage", ["missing", "shorter", "count", "no point"])
def test_a_damaged_copy_is_an_error_and_no_other_data(
    damage: str, logs: Path, target: Path, store: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    out = cleaned(logs, target).out
    (point,) = restore_points(target)
    key = f"cleaned/one/backups/{point.backup_id}.json"
    if damage == "no point":
        store.delete(key)
    elif damage == "count":
        document = json.loads(bytes(store.get(key).bytes()))
        document["directories"][0]["files"][0]["size"] += 50_000
        store.put(key, json.dumps(document).encode())
    else:
        for name in point.chunks:
            chunk = f"cleaned/one/chunks/{name[:2]}/{name}"
            data = bytes(store.get(chunk).bytes())
            store.delete(chunk)
            if damage == "shorter":
                store.put(chunk, data[:-1])
    files.forget_options()  # as another process, which knows nothing of it
    assert run(["explain", str(out).replace("s3:/", "s3://"), "--engine", "process"]) != 0
    (line, *_) = capsys.readouterr().err.splitlines()
    expected = {
        "missing": "missing",
        "shorter": "bytes instead of",
        "count": "chunks for",
        "no point": "no such",
    }
    assert expected[damage] in line


@pytest.mark.random
def test_windows_over_chunks_give_the_bytes_of_any_place(bucket: str, tmp_path: Path) -> None:
    directory = tmp_path / "logs"
    with st.open(directory, mode="a") as opened:
        opened.topics.create("users", 1, {})
        opened.send("users", bytes(range(256)) * 300)
    target = Path(f"s3://{bucket}/backup")
    backup(BackupRequest(directories=[directory], target=target))
    root = files.newest_stored(target)
    (segment,) = (directory / "users-0").glob("*.log")
    data = segment.read_bytes()
    path = root / "users-0" / segment.name
    assert files.stat(path).modified_ns == segment.stat().st_mtime_ns
    places = [
        0,
        5,
        CHUNK_BYTES - 1,
        CHUNK_BYTES,
        CHUNK_BYTES + 1,
        40_000,
        len(data) - 3,
        len(data),
        len(data) + 9,
    ]
    sizes = (1, 100, CHUNK_BYTES, 19_000, 70_000)
    for row, at in enumerate(places):
        for size in sizes if THOROUGH else sizes[row % 2 :: 2]:
            assert files.read_slice(path, at, size) == data[at : at + size]
    with files.Reader(path) as reader:
        assert b"".join(reader.read(at, 3_000) for at in range(0, len(data), 3_000)) == data
    with pytest.raises(FileNotFoundError):
        files.read_bytes(root / "users-0" / "nothing")
    with pytest.raises(FileNotFoundError):
        files.entries(root / "nothing")
    assert not files.is_directory(root / "users-0" / segment.name)
    assert files.is_directory(root / "users-0")
