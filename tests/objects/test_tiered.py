"""Remote segments in a bucket or a directory are read with the local ones, and nothing but them."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import zstandard

import siltstone as st
from siltstone.base import files
from siltstone.base.errors import SiltstoneError
from siltstone.base.files import objects
from siltstone.cli.main import run
from siltstone.log.indexes import AbortedTransaction, encode_aborted
from siltstone.log.segments import list_segments
from siltstone.log.tiered.joining import with_remotes
from siltstone.log.transactions import read_transaction_indexes
from tests.support.cleaning.transactional import data, marker
from tests.support.tiered import (
    TOPIC,
    TieredLog,
    at_offset,
    batches_of,
    encode_sizes,
    offsets_of,
    put_below,
    segment_id,
)

LAYOUTS = ("aiven", "local")
COUNT = 600


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log directory before anything was moved; copy it before use."""
    path = tmp_path_factory.mktemp("whole") / "logs"
    TieredLog(directory=path, put=lambda *_: None).write(COUNT)
    return path


@pytest.fixture
def tiered(whole: Path, tmp_path: Path) -> Callable[..., tuple[TieredLog, Path]]:
    """(a directory whose closed segments are in a storage below it, the storage)."""

    def make(**options: Any) -> tuple[TieredLog, Path]:
        shutil.copytree(whole, tmp_path / "logs")
        storage = tmp_path / "storage"
        storage.mkdir()
        log = TieredLog(directory=tmp_path / "logs", put=put_below(storage), **options)
        log.tier()
        return log, storage

    return make


def records_of(path: Path, remote: str | Path | None = None) -> list[tuple[int, bytes | None, bytes | None]]:
    with st.open(path, remote=None if remote is None else str(remote)) as logs:
        assert logs[TOPIC, 0].damage == ()
        return [(record.offset, record.key, record.value) for record in logs[TOPIC]]


@pytest.fixture
def expected(whole: Path) -> list[tuple[int, bytes | None, bytes | None]]:
    found = records_of(whole)
    assert len(found) == COUNT
    return found


Records = list[tuple[int, bytes | None, bytes | None]]
Made = Callable[..., tuple[TieredLog, Path]]


@pytest.mark.parametrize(
    "options",
    [{}, {"compressed": False}, {"chunk_size": 100_000}, {"chunk_size": 61}, {"layout": "local"}],
    ids=str,
)
def test_a_directory_with_its_storage_has_all_records(
    options: dict[str, Any], tiered: Made, expected: Records
) -> None:
    log, storage = tiered(**options)
    local_only = records_of(log.directory)
    assert 0 < len(local_only) < COUNT
    assert records_of(log.directory, storage) == expected
    assert records_of(log.partition, storage) == expected
    assert records_of(log.directory) == local_only


def test_a_bucket_is_read_in_ranges_and_few_of_them(
    whole: Path, tmp_path: Path, store: Any, bucket: str, expected: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(whole, tmp_path / "logs")
    log = TieredLog(directory=tmp_path / "logs", put=lambda key, data: store.put(f"tier/{key}", data))
    log.tier()
    fetched: list[tuple[int, int]] = []
    get = objects.Windows._get

    def counted(windows: objects.Windows, start: int, end: int) -> memoryview:
        fetched.append((start, end))
        return get(windows, start, end)

    monkeypatch.setattr(objects.Windows, "_get", counted)
    remote = f"s3://{bucket}/tier"
    assert records_of(log.directory, remote) == expected
    segments = len(log.copied)
    assert len(fetched) <= 3 * segments  # the manifest, the indexes and the log, each small and once
    assert store.head(f"tier/{log.copied[0]}.log")["size"] > 0


@pytest.mark.parametrize("layout", LAYOUTS)
def test_batches_are_read_from_the_middle(layout: str, tiered: Made, expected: Records) -> None:
    log, storage = tiered(layout=layout)
    with st.open(log.directory, remote=str(storage)) as logs:
        partition = logs[TOPIC, 0]
        assert (partition.log_start_offset, partition.log_end_offset) == (0, COUNT)
        for offset in (0, 1, 57, 311, COUNT - 1):
            first = next(iter(partition.records(offset)))
            assert (first.offset, first.key, first.value) == expected[offset]
        assert "joined" not in repr(logs) + repr(partition)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_commands_say_of_it_what_they_say_of_the_whole_log(
    layout: str, tiered: Made, whole: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log, storage = tiered(layout=layout)
    compact = f"--engine process --json --topic {TOPIC} --config cleanup.policy=compact --force".split()

    def said(arguments: Sequence[str], directory: Path, *remote: str) -> Any:
        assert run([*arguments[:1], str(directory), *arguments[1:], *remote]) == 0
        printed = capfd.readouterr()
        assert "joined" not in printed.out + printed.err
        return json.loads(printed.out)

    for command in (["explain", *compact], ["clean", "--dry-run", *compact]):
        with_storage = said(command, log.directory, "--remote", str(storage))
        of_whole = said(command, whole)
        (of_both,), (of_one,) = with_storage["logs"], of_whole["logs"]
        differs = {name for name in of_one if of_both[name] != of_one[name]}
        assert {name for name in differs if "seconds" not in name} <= {"directory"}
        assert of_one["records_before"] > 2 * of_one["records_after"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_cleaned_copy_of_it_is_that_of_the_whole_log(
    layout: str, tiered: Made, whole: Path, tmp_path: Path
) -> None:
    log, storage = tiered(layout=layout)
    options: dict[str, Any] = {
        "topic": TOPIC,
        "config": {"cleanup.policy": "compact"},
        "engine": "process",
        "force": True,
        "now_ms": 1_900_000_000_000,
    }
    st.clean(log.directory, remote=str(storage), out=tmp_path / "copy", **options)
    st.clean(whole, out=tmp_path / "of-whole", **options)
    of_whole = sorted((tmp_path / "of-whole" / f"{TOPIC}-0").glob("*.log"))
    assert [path.name for path in of_whole] == [
        path.name for path in sorted((tmp_path / "copy" / f"{TOPIC}-0").glob("*.log"))
    ]
    for path in of_whole:
        assert (tmp_path / "copy" / f"{TOPIC}-0" / path.name).read_bytes() == path.read_bytes()
    del options["force"]
    st.verify(log.directory, tmp_path / "copy", remote=str(storage), **options).raise_for_errors()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_dump_shows_the_remote_files_under_their_own_names(
    layout: str, tiered: Made, whole: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log, storage = tiered(layout=layout)
    name = "00000000000000000000.log"
    assert run(["dump", str(log.partition / name), "--remote", str(storage)]) == 0
    out, err = capfd.readouterr()
    assert err == ""
    assert out.startswith(f"Dumping {storage}/")
    assert segment_id(0) in out.split("\n")[0]
    assert run(["dump", str(whole / f"{TOPIC}-0" / name)]) == 0
    assert capfd.readouterr().out.split("\n")[1:] == out.split("\n")[1:]
    assert run(["dump", str(log.directory), "--remote", str(storage)]) == 0
    printed = capfd.readouterr()
    assert printed.out.count("Dumping") > len(log.bases) * 3
    _, second, *_ = sorted(path.stem for path in (whole / f"{TOPIC}-0").glob("*.log"))
    snapshot = log.partition / f"{second}.snapshot"
    assert not snapshot.exists() and run(["dump", str(snapshot), "--remote", str(storage)]) == 0
    assert run(["dump", str(log.partition / f"{0:020d}.txnindex"), "--remote", str(storage)]) == 1
    capfd.readouterr()
    assert "joined" not in printed.out + printed.err


def test_whoever_would_write_is_refused_and_the_storage_stays_as_it_is(
    tiered: Made, capfd: pytest.CaptureFixture[str]
) -> None:
    log, storage = tiered()

    def state(root: Path) -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in root.rglob("*") if path.is_file()}

    before = state(storage), state(log.directory)
    assert run(["clean", "--in-place", str(log.directory), "--all-topics", "--remote", str(storage)]) == 1
    assert "a log with a remote part is only read" in capfd.readouterr().err
    with pytest.raises(SiltstoneError, match="a log with a remote part is only read"):
        st.open(log.directory, mode="a", remote=str(storage))  # type: ignore[call-overload]
    path = files.join(log.directory, str(storage)) / f"{TOPIC}-0"
    for change in (
        lambda: files.write_new(path / "new", b"x"),
        lambda: files.unlink(path / "00000000000000000000.log"),
        lambda: files.rename(path / "00000000000000000000.log", log.directory / "x"),
        lambda: files.make_directory(path / "new"),
        lambda: files.replace(path / "leader-epoch-checkpoint", b""),
    ):
        with pytest.raises(OSError, match="only read") as caught:
            change()
        assert "joined" not in str(caught.value)
    assert (state(storage), state(log.directory)) == before


# Copies of which a part belongs to the log: of several leaders, of one that stopped in between.


@dataclass(frozen=True)
class Parts:
    """A log whose first segment is taken apart. ``middle``: an offset within it, at which a batch begins."""

    log: TieredLog
    storage: Path
    batches: list[bytes]
    middle: int


@pytest.fixture
def parts(whole: Path, tmp_path: Path) -> Callable[..., Parts]:
    """A log whose segments are all in a storage but the first, which the test copies."""

    def make(source: Path = whole, **options: Any) -> Parts:
        shutil.copytree(source, tmp_path / "logs")
        storage = tmp_path / "storage"
        storage.mkdir()
        log = TieredLog(directory=tmp_path / "logs", put=put_below(storage), **options)
        batches = batches_of((log.partition / f"{0:020d}.log").read_bytes())
        log.tier()
        for path in storage.rglob(f"{0:020d}-*"):
            path.unlink()
        return Parts(log, storage, batches, offsets_of(batches[len(batches) // 2])[0])

    return make


PLACES: list[dict[str, Any]] = [{"layout": "local"}, {"compressed": False}, {"chunk_size": 61}, {}]


@pytest.mark.parametrize("options", PLACES, ids=str)
def test_copies_that_overlap_give_each_record_once(
    options: dict[str, Any], parts: Callable[..., Parts], expected: Records
) -> None:
    its = parts(**options)
    number = len(its.batches) // 2
    its.log.copy_batches(its.batches[: number + 7], segment_id(100), {0: 0})
    its.log.copy_batches(its.batches[number - 5 :], segment_id(101), {0: 0})
    assert records_of(its.log.directory, its.storage) == expected
    with st.open(its.log.directory, remote=str(its.storage)) as logs:
        for offset in range(its.middle - 9, its.middle + 10):  # by the parts' names, without their indexes
            assert next(iter(logs[TOPIC, 0].records(offset))).value == expected[offset][2]


@pytest.mark.parametrize("options", PLACES, ids=str)
def test_a_part_of_a_copy_has_the_aborted_transactions_whose_markers_it_has(
    options: dict[str, Any], parts: Callable[..., Parts]
) -> None:
    its = parts(**options)
    end = offsets_of(its.batches[-1])[1] + 1
    begun = range(0, end - 3, 2)  # each is a record and its marker
    batches = [b for o in begun for b in (data(o, 7, "k", "aborted"), marker(o + 1, 7, commit=False))]
    batches += its.batches[len(batches) :]
    aborted = [AbortedTransaction(7, offset, offset + 1, offset + 2) for offset in begun]
    its.log.copy_batches(batches[:30], segment_id(100), {0: 0}, aborted=encode_aborted(aborted[:15]))
    its.log.copy_batches(batches[20:], segment_id(101), {0: 0}, aborted=encode_aborted(aborted[10:]))
    (path,) = with_remotes([its.log.partition], str(its.storage))
    assert read_transaction_indexes(list_segments(path)) == encode_aborted(aborted)
    with st.open(its.log.directory, remote=str(its.storage)) as logs:
        committed = [record.offset for record in logs[TOPIC, 0].records(isolation="read_committed")]
    assert committed == list(range(begun[-1] + 2, COUNT))


@pytest.mark.parametrize("options", PLACES, ids=str)
def test_a_copy_that_another_leader_repeated_counts_once(
    options: dict[str, Any], parts: Callable[..., Parts], expected: Records
) -> None:
    its = parts(**options)
    its.log.copy_batches(its.batches[: len(its.batches) // 3], segment_id(100), {0: 0})
    its.log.copy_batches(its.batches, segment_id(101), {0: 0})
    assert records_of(its.log.directory, its.storage) == expected


@pytest.mark.parametrize("options", PLACES, ids=str)
def test_records_that_an_election_cut_off_are_not_read(
    options: dict[str, Any], parts: Callable[..., Parts], expected: Records
) -> None:
    its = parts(**options)
    number, middle = len(its.batches) // 2, its.middle
    others = [at_offset(batch, middle + place) for place, batch in enumerate(its.batches[:9])]
    its.log.copy_batches([*its.batches[:number], *others], segment_id(100), {0: 0})
    its.log.copy_batches(its.batches[number:], segment_id(101), {1: middle})
    (its.log.partition / "leader-epoch-checkpoint").write_text(f"0\n2\n0 0\n1 {middle}\n")
    for path in its.storage.rglob("*"):  # the later segments are of the second leader, too
        if path.name.endswith(("manifest", "checkpoint")) and not path.name.startswith(f"{0:020d}"):
            retell_epochs(path, its.log.layout, middle)
    assert records_of(its.log.directory, its.storage) == expected


def retell_epochs(path: Path, layout: str, start: int) -> None:
    """Let a copy say that it has the leader epoch 1."""
    if layout == "local":
        path.write_text(f"0\n1\n1 {start}\n")
        return
    document = json.loads(path.read_text())
    metadata = document["remoteLogSegmentMetadata"]
    metadata["segmentLeaderEpochs"] = {"1": metadata["startOffset"]}
    path.write_text(json.dumps(document))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_batch_that_two_copies_cut_apart_is_an_error(
    layout: str, parts: Callable[..., Parts], tmp_path: Path
) -> None:
    with st.open(tmp_path / "many", mode="a") as logs:
        logs.topics.create(TOPIC, 1, {"segment.bytes": "20000"})
        for number in range(30):
            logs.send_many(TOPIC, [st.NewRecord(value=b"%d" % number * 50) for _ in range(20)])
    its = parts(tmp_path / "many", layout=layout)
    its.log.copy_batches(its.batches[:5], segment_id(100), {0: 0})
    its.log.copy_batches(its.batches[3:], segment_id(102), {0: 0})
    assert records_of(its.log.directory, its.storage) == records_of(tmp_path / "many"), "cut between batches"
    for path in its.storage.rglob(f"*{segment_id(102)}*"):
        path.unlink()
    its.log.copy_batches([at_offset(its.batches[4], 93), *its.batches[6:]], segment_id(101), {0: 0})
    with pytest.raises(SiltstoneError, match="another copy of the log is read from 100 on") as caught:
        records_of(its.log.directory, its.storage)
    assert str(caught.value.path).startswith(str(its.storage))


def test_a_copy_whose_log_was_cut_short_is_an_error(tiered: Made) -> None:
    log, storage = tiered(layout="local")
    path = storage_files(storage, "*.log")[1]
    data = path.read_bytes()
    first, last = offsets_of(batches_of(data)[-1])
    path.write_bytes(data[:-20])
    with pytest.raises(SiltstoneError) as caught:
        records_of(log.directory, storage)
    assert str(path) in str(caught.value)
    path.write_bytes(data[: -len(batches_of(data)[-1])])  # between two batches
    with pytest.raises(SiltstoneError, match=f"has the offsets {first} to {last} of {TOPIC}-0"):
        records_of(log.directory, storage)


def test_a_storage_that_is_not_there_is_named(tiered: Made, tmp_path: Path) -> None:
    log, _ = tiered()
    with pytest.raises(SiltstoneError, match="there is no directory of remote segments") as caught:
        st.open(log.directory, remote=str(tmp_path / "nothing"))
    assert caught.value.path == str(tmp_path / "nothing")


@pytest.mark.parametrize("view", ["log", "latest"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_table_of_it_is_that_of_the_whole_log(
    layout: str, view: str, tiered: Made, whole: Path, tmp_path: Path
) -> None:
    log, storage = tiered(layout=layout)

    def rows(name: str, path: Path, **options: Any) -> list[dict[str, Any]]:
        st.export(path, tmp_path / name, topic=TOPIC, view=view, **options)
        table = pq.read_table(tmp_path / name, columns=["offset", "key", "value"])
        return sorted(table.to_pylist(), key=lambda row: int(row["offset"]))

    of_whole = rows("whole", whole)
    assert rows("both", log.directory, remote=str(storage)) == of_whole
    assert len(of_whole) == (COUNT if view == "log" else 41)
    assert len(rows("local", log.directory)) < len(of_whole) or view == "latest"


# What a storage has besides finished copies, and what may be wrong with it.


def storage_files(storage: Path, pattern: str) -> list[Path]:
    found = sorted(storage.rglob(pattern))
    assert found
    return found


@pytest.mark.parametrize(
    ("layout", "kind"), [("aiven", "rsm-manifest"), ("local", "leader_epoch_checkpoint")]
)
def test_an_unfinished_copy_of_local_offsets_does_not_count(
    layout: str, kind: str, tiered: Made, expected: Records
) -> None:
    log, storage = tiered(layout=layout)
    storage_files(storage, f"*.{kind}")[-1].unlink()  # of the last closed segment, which is local, too
    assert records_of(log.directory, storage) == expected


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_gap_is_an_error_that_names_the_offsets(layout: str, tiered: Made) -> None:
    log, storage = tiered(layout=layout)
    logs = storage_files(storage, "*.log")
    first, last = (int(path.name[:20]) for path in logs[1:3])
    logs[1].unlink()
    with pytest.raises(SiltstoneError) as caught:
        records_of(log.directory, storage)
    assert f"has the offsets {first} to {last - 1} of {TOPIC}-0" in str(caught.value)
    assert str(storage) in str(caught.value)
    assert "joined" not in str(caught.value)


def test_other_topics_of_the_name_do_not_count(tiered: Made, expected: Records) -> None:
    log, storage = tiered()
    folder = storage / f"{TOPIC}-{log.topic_id}"
    other = storage / f"{TOPIC}-{'A' * 22}"
    shutil.copytree(folder, other)
    assert records_of(log.directory, storage) == expected
    shutil.rmtree(folder)
    assert len(records_of(log.directory, storage)) < COUNT  # the copy says that it is another topic's
    (log.partition / "partition.metadata").unlink()
    with pytest.raises(SiltstoneError, match="the manifest is that of another segment"):
        records_of(log.directory, storage)
    shutil.copytree(other, folder)
    with pytest.raises(SiltstoneError, match="several topics"):
        records_of(log.directory, storage)


def test_a_manifest_of_another_segment_is_refused(tiered: Made) -> None:
    log, storage = tiered()
    first, second = storage_files(storage, "*.rsm-manifest")[:2]
    document = json.loads(first.read_text())
    document["remoteLogSegmentMetadata"]["remoteLogSegmentId"]["id"] = second.name[21:43]
    first.write_text(json.dumps(document))
    with pytest.raises(SiltstoneError, match="the manifest is that of another segment") as caught:
        records_of(log.directory, storage)
    assert caught.value.path == str(first)
    assert f"{TOPIC}-0 (" in str(caught.value)
    assert f"segment {first.name[:20]}-{second.name[21:43]}" in str(caught.value)


def test_an_encrypted_segment_is_refused(tiered: Made) -> None:
    log, storage = tiered()
    path = storage_files(storage, "*.rsm-manifest")[1]
    path.write_text(json.dumps(json.loads(path.read_text()) | {"encryption": {"dataKey": "k:SECRET"}}))
    with pytest.raises(SiltstoneError, match="encrypted") as caught:
        records_of(log.directory, storage)
    assert "SECRET" not in str(caught.value)


def forge(storage: Path, change: Callable[[bytes], bytes]) -> Path:
    """Change the first segment's object, which has one chunk, and let the manifest say its new size."""
    log = storage_files(storage, "*.log")[0]
    manifest = log.with_suffix(".rsm-manifest")
    document = json.loads(manifest.read_text())
    log.write_bytes(change(log.read_bytes()))
    packed = zstandard.ZstdCompressor().compress(encode_sizes([log.stat().st_size]))
    document["chunkIndex"]["transformedChunks"] = base64.b64encode(packed).decode()
    manifest.write_text(json.dumps(document))
    return log


def bomb(size: int) -> bytes:
    return zstandard.ZstdCompressor().compress(bytes(size))


def silent_bomb(size: int) -> bytes:
    """A frame that does not declare its size."""
    compressor = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    return compressor.compress(bytes(size)) + compressor.flush()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda _: bomb(256 << 20), "declares 268435456 bytes"),
        (lambda _: silent_bomb(256 << 20), "no whole zstd frame"),
        (lambda data: data[:-7], "no whole zstd frame"),
        (lambda data: data + b"more", "no whole zstd frame"),
        (lambda data: data[:200] + bytes(8) + data[208:], r"byte \d+: "),
        (lambda _: b"", "no whole zstd frame"),
        (lambda _: bomb(100), "declares 100 bytes"),
    ],
)
def test_a_chunk_that_is_not_what_the_manifest_says_is_an_error(
    change: Callable[[bytes], bytes], reason: str, tiered: Made
) -> None:
    log, storage = tiered(chunk_size=1 << 20)
    path = forge(storage, change)
    with pytest.raises(SiltstoneError, match=reason) as caught:
        records_of(log.directory, storage)
    assert caught.value.path == str(path)


def test_an_object_of_another_size_than_its_manifest_says_is_refused(tiered: Made) -> None:
    log, storage = tiered()
    path = storage_files(storage, "*.log")[0]
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(SiltstoneError, match="but the object has"):
        records_of(log.directory, storage)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_link_in_a_storage_is_not_followed(layout: str, tiered: Made, tmp_path: Path) -> None:
    log, storage = tiered(layout=layout)
    path = storage_files(storage, "*.log")[0]
    shutil.move(path, tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SiltstoneError, match="is a symbolic link") as caught:
        records_of(log.directory, storage)
    assert caught.value.path == str(path)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_linked_directory_of_a_storage_is_not_followed(layout: str, tiered: Made, tmp_path: Path) -> None:
    log, storage = tiered(layout=layout)
    (folder,) = storage.iterdir()
    shutil.move(folder, tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SiltstoneError, match="symbolic link") as caught:
        records_of(log.directory, storage)
    assert caught.value.path == str(folder)


def test_a_file_that_is_replaced_by_a_link_while_it_is_read_is_an_error(tiered: Made, tmp_path: Path) -> None:
    log, storage = tiered(compressed=False)
    with st.open(log.directory, remote=str(storage)) as logs:
        partition = logs[TOPIC, 0]
        for path in storage_files(storage, "*.log"):
            shutil.copy2(path, tmp_path / path.name)
            path.unlink()
            path.symlink_to(tmp_path / path.name)
        with pytest.raises((OSError, SiltstoneError)) as caught:
            list(partition)
        assert "joined" not in str(caught.value)


@pytest.mark.parametrize("compressed", [True, False])
def test_an_object_that_is_replaced_while_it_is_read_is_an_error(
    compressed: bool, whole: Path, tmp_path: Path, store: Any, bucket: str
) -> None:
    shutil.copytree(whole, tmp_path / "logs")
    log = TieredLog(
        directory=tmp_path / "logs",
        put=lambda key, data: store.put(f"tier/{key}", data),
        compressed=compressed,
    )
    log.tier()
    with st.open(log.directory, remote=f"s3://{bucket}/tier") as logs:
        partition = logs[TOPIC, 0]
        for key in log.copied:
            data = bytes(store.get(f"tier/{key}.log").bytes())
            store.put(f"tier/{key}.log", data[::-1])
        with pytest.raises(OSError, match="replaced while it was read") as caught:
            list(partition)
        assert str(caught.value.filename).startswith(f"s3://{bucket}/tier/")
