"""What a backup reads beside a running broker, and its progress. (No store is needed: these are dry runs.)"""

from __future__ import annotations

from pathlib import Path

import pytest

from siltstone.base import files
from siltstone.base.clock import ManualClock
from siltstone.base.errors import SourceChangedError
from siltstone.base.files.backups import ChunkWriter
from siltstone.commands import backup as backups
from siltstone.commands.backup import BackupRequest, backup

TARGET = Path("s3://bucket/backups")
CHECKPOINT = "replication-offset-checkpoint"


def log_directory(root: Path) -> Path:
    (root / "users-0").mkdir(parents=True)
    (root / "users-0" / "00000000000000000000.log").write_bytes(b"x" * 100)
    (root / "users-0" / "00000000000000000007.log.deleted").write_bytes(b"x" * 1000)
    (root / CHECKPOINT).write_bytes(b"0\n1\nusers 0 5\n")
    (root / "meta.properties").write_bytes(b"version=1\nnode.id=1\ncluster.id=c\n")
    return root


@pytest.mark.parametrize("is_live", [False, True])
def test_the_progress_of_several_directories_ends_at_all_of_their_bytes(
    is_live: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backups, "restore_points", lambda target: [])
    roots = [log_directory(tmp_path / name) for name in ("one", "two")]
    shown = list[tuple[int, int]]()
    result = backup(
        BackupRequest(directories=roots, target=TARGET, is_live=is_live, dry_run=True),
        ManualClock(1_900_000_000_000),
        lambda step, done, total: shown.append((done, total)),
    )
    assert {total for _, total in shown} == {result.bytes}
    assert [done for done, _ in shown] == sorted(done for done, _ in shown)
    assert shown[-1] == (result.bytes, result.bytes)


@pytest.mark.parametrize("text", [b"0\n2\nusers 0 5\nusers 1 7\n", b"0\n0\n"])
def test_a_checkpoint_that_is_replaced_meanwhile_is_copied_again(
    text: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, put_file, replaced = log_directory(tmp_path / "logs"), ChunkWriter.put_file, list[str]()

    def putting(writer: ChunkWriter, reader: files.Reader, size: int) -> tuple[str, ...]:
        if reader.path.endswith(CHECKPOINT) and not replaced:
            replaced.append(reader.path)
            files.replace(root / CHECKPOINT, text)
            with files.Reader(root / CHECKPOINT) as new:
                return put_file(writer, new, size)  # as if it was opened after it was replaced
        return put_file(writer, reader, size)

    monkeypatch.setattr(ChunkWriter, "put_file", putting)
    work = backups._Backup(
        BackupRequest(directories=[root], target=TARGET, is_live=True, dry_run=True), [], backups.no_progress
    )
    (directory,) = work.back_up([root])
    (checkpoint,) = (file for file in directory.files if file.name == CHECKPOINT)
    assert replaced and checkpoint.size == len(text)
    assert checkpoint.chunks == ChunkWriter(TARGET, dry_run=True).put_file(
        files.Reader(root / CHECKPOINT), len(text)
    )


def test_a_checkpoint_that_changes_all_the_time_is_an_error_and_a_removed_one_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, put_file = log_directory(tmp_path / "logs"), ChunkWriter.put_file
    request = BackupRequest(directories=[root], target=TARGET, is_live=True, dry_run=True)

    def changing(writer: ChunkWriter, reader: files.Reader, size: int) -> tuple[str, ...]:
        chunks = put_file(writer, reader, size)
        if reader.path.endswith(CHECKPOINT):
            files.replace(root / CHECKPOINT, b"0\n1\nusers 0 6\n")
        return chunks

    monkeypatch.setattr(ChunkWriter, "put_file", changing)
    with pytest.raises(SourceChangedError, match=f"changed {backups.LIVE_ATTEMPTS} times") as caught:
        backups._Backup(request, [], backups.no_progress).back_up([root])
    assert caught.value.path == str(root / CHECKPOINT)

    def removing(writer: ChunkWriter, reader: files.Reader, size: int) -> tuple[str, ...]:
        if reader.path.endswith(CHECKPOINT):
            files.unlink(root / CHECKPOINT)
        return put_file(writer, reader, size)

    monkeypatch.setattr(ChunkWriter, "put_file", removing)
    (directory,) = backups._Backup(request, [], backups.no_progress).back_up([root])
    assert sorted(file.name for file in directory.files) == [
        "meta.properties",
        "users-0/00000000000000000000.log",
    ]
