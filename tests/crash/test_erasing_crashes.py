"""A crash at every step of an erasure: a receipt that is on the disk is true of all that is, and the next run
ends as if nothing had been."""

from __future__ import annotations

from pathlib import Path

import pytest

from siltstone.commands.changes import CHANGES_FILE, ChangeLog
from siltstone.commands.erasing import ABSENT, ERASE_KEY, KEY_GONE
from tests.commands.test_erasing import KEY, VALUE, erase, files_with, open_at, put
from tests.support.cleaning.serving import table, write
from tests.support.crash.disk import DROP, KEEP, Disk, Recording, Variant, recorded
from tests.support.thoroughness import SEEDS, THOROUGH, boundaries, turn

pytestmark = pytest.mark.random

SETTINGS = {"delete.retention.ms": "0", "segment.bytes": "1000"}


def prepare(root: Path) -> dict[bytes | None, bytes]:
    """A log of several segments in which the key has two values; the table without it."""
    with open_at(root, topic=SETTINGS) as here:
        log = here.manager["users", 0]
        write(log, 8)
        put(log)
        write(log, 8)
        put(log, VALUE[::-1])
        remaining = table(log)
    del remaining[KEY]
    return remaining


def run(root: Path) -> str:
    """Both steps of the erasure; its status."""
    with open_at(root) as here:
        return erase(here).status


def steps_with_receipt(root: Path) -> list[object]:
    """The receipts on the disk, whatever else is there."""
    with open_at(root) as here:
        changes = ChangeLog(root, here.manager.clock).all_of(ERASE_KEY, "users")
    return [change.receipt["step"] for change in changes if change.receipt is not None]


def check_image(root: Path, remaining: dict[bytes | None, bytes]) -> None:
    """What a crash has left: its receipts are true before anything is recovered, and the next run ends
    well."""
    audit = (root / CHANGES_FILE).read_bytes() if (root / CHANGES_FILE).exists() else b""
    if b'"receipt":{"step":"values"' in audit:
        assert files_with(root, VALUE) == files_with(root, VALUE[::-1]) == []
    if b'"receipt":{"step":"key"' in audit:
        assert files_with(root, KEY) == []
    had_both = steps_with_receipt(root) == ["values", "key"]
    assert run(root) == (ABSENT if had_both else KEY_GONE)
    assert files_with(root, VALUE) == files_with(root, VALUE[::-1]) == files_with(root, KEY) == []
    assert steps_with_receipt(root)[-1] == "key"
    with open_at(root) as here:
        assert table(here.manager["users", 0]) == remaining


def record(root: Path) -> tuple[Recording, dict[bytes | None, bytes]]:
    """The operations of an undisturbed erasure, and what it leaves."""
    remaining = prepare(root)
    with recorded(root) as recording:
        assert run(root) == KEY_GONE
    return recording, remaining


def test_whatever_was_on_disk_by_then(tmp_path: Path) -> None:
    recording, remaining = record(tmp_path / "logs")
    images, failures = set[int](), list[str]()
    variants: list[Variant] = [KEEP, DROP, *SEEDS]
    for count in boundaries(len(recording.steps) + 1):
        disk = Disk(recording, count)
        for variant in turn(count, variants):
            mixed = variant * 1009 + count if isinstance(variant, int) else variant
            if not disk.build(mixed, images):
                continue
            try:
                check_image(recording.root, remaining)
            except Exception as error:
                what = recording.steps[count].operation if count < len(recording.steps) else "end"
                failures.append(f"{count} ({what}) {mixed}: {type(error).__name__}: {error}"[:400])
    assert failures == []
    assert len(images) > (20 if THOROUGH else 8)


def test_what_is_receipted_is_durable(tmp_path: Path) -> None:
    recording, remaining = record(tmp_path / "logs")
    Disk(recording, len(recording.steps)).build(DROP)
    assert steps_with_receipt(recording.root) == ["values", "key"]
    check_image(recording.root, remaining)


def test_the_test_notices_files_that_are_still_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("siltstone.runtime.manager.remove_deleted", lambda directory: None)
    recording, remaining = record_unchecked(tmp_path / "logs")
    Disk(recording, len(recording.steps)).build(KEEP)
    with pytest.raises(AssertionError):
        check_image(recording.root, remaining)


def record_unchecked(root: Path) -> tuple[Recording, dict[bytes | None, bytes]]:
    """As ``record``, whatever the status of the erasure."""
    remaining = prepare(root)
    with recorded(root) as recording:
        run(root)
    return recording, remaining
