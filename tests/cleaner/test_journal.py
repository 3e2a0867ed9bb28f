"""The journal and the winners' files: what is written comes back, and what was changed never does."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from siltstone.base.errors import CheckFailedError
from siltstone.compaction.discards import Discarded
from siltstone.compaction.engine import WinnersFile, is_sound, read_winners, rewrite_from, write_winners
from siltstone.compaction.extraction import Group
from siltstone.compaction.inplace import resume as journal_module
from siltstone.compaction.inplace.resume import (
    Basis,
    Checked,
    Journal,
    decode,
    encode,
    groups_done,
    size_at_most,
)
from siltstone.compaction.staging import Rewritten
from siltstone.compaction.work import LogWork
from siltstone.log.segments import Segment
from siltstone.log.transactions import Carried

PARTITION = Path("/data/topic-0")
FOLDER = PARTITION / ".siltstone" / "run"
LARGE = (1 << 63) - 1


def segment(base: int, inode: int = 7) -> Segment:
    return Segment(
        directory=str(PARTITION),
        base_offset=base,
        size=100 + base,
        modified_ns=1_700_000_000_000_000_000 + base,
        inode=inode,
        offset_index_size=8,
        time_index_size=12,
        transaction_index_size=0,
    )


def work(segments: int = 3) -> LogWork:
    return LogWork(
        name="topic-0",
        segments=tuple(segment(10 * i) for i in range(segments)),
        groups=tuple(
            Group(index=i, first=i, last=i + 1, base_offset=10 * i, end_offset=10 * i + 10)
            for i in range(segments)
        ),
        first_dirty=5,
        end=10 * segments,
        now_ms=1_800_000_000_000,
        delete_retention_ms=86_400_000,
        producers=((4, 17, 0), (LARGE, LARGE, (1 << 15) - 1)),
        legacy_horizon_ms=1_790_000_000_000,
        index_interval=4096,
        index_bytes=10 << 20,
        drop_keyless=True,
        staging=str(FOLDER),
        hash_key=(0, 0),
        window_size=1 << 20,
        memory_bytes=1 << 29,
    )


def a_journal(segments: int = 3, checked: int = 1) -> Journal:
    rewritten = [
        Rewritten(
            group=i,
            records=9,
            kept=4,
            removed=Discarded(superseded=3, tombstones=1, keyless=1),
            winners=4,
            size=50 + i,
        )
        for i in range(checked)
    ]
    return Journal(
        work=work(segments),
        rest=(segment(10 * segments),),
        basis=Basis(checkpoint=5, settings=dict.fromkeys(journal_module.SETTINGS, 3)),
        dirty_ratio=1 / 3,
        records=27,
        keyless=3,
        dirty_keys=12,
        winners=tuple(
            WinnersFile(
                group=i,
                name=f"{10 * i:020d}.{'f' * 16}.winners",
                count=4,
                checksum=0xFFFFFFFF,
                carried=Carried(unended=(LARGE,), observed=(10 * i,)),
            )
            for i in range(segments)
        ),
        checked=tuple(Checked(rewritten=each, inode=LARGE, modified_ns=LARGE) for each in rewritten),
    )


def test_what_is_written_comes_back() -> None:
    for checked in range(4):
        journal = a_journal(checked=checked)
        assert decode(encode(journal), PARTITION, FOLDER) == journal
    assert (
        decode(encode(replace(journal, winners=_without(journal))), PARTITION, FOLDER).winners[1].count == 0
    )


def _without(journal: Journal) -> tuple[WinnersFile, ...]:
    return (journal.winners[0], WinnersFile(group=1), journal.winners[2])


def test_every_field_of_the_work_is_in_it() -> None:
    """A field that is added to the work has to be thought of here."""
    body = json.loads(encode(a_journal()))["log"]
    left_out = {"staging", "hash_key", "aborted", "above", "may_cut", "io_bytes_per_second", "batch_limit"}
    assert {field.name for field in fields(LogWork)} - left_out <= set(body)
    counts = {field.name for field in fields(Rewritten)} - {"staged", "identity", "trouble"}
    assert counts == set(journal_module._COUNTS)


def test_every_flipped_byte_and_every_cut_is_seen() -> None:
    data = encode(a_journal(segments=2))
    for position in range(len(data)):
        for mask in (0x01, 0x20, 0x80):
            changed = bytearray(data)
            changed[position] ^= mask
            with pytest.raises(ValueError, match="its journal"):
                decode(bytes(changed), PARTITION, FOLDER)
        with pytest.raises(ValueError, match="its journal"):
            decode(data[:position], PARTITION, FOLDER)
    for more in (b"\n", b" ", b"{}", data):
        with pytest.raises(ValueError, match="its journal"):
            decode(data + more, PARTITION, FOLDER)


@given(st.binary(max_size=200) | st.text(max_size=50).map(str.encode))
def test_noise_is_no_journal(data: bytes) -> None:
    with pytest.raises(ValueError, match="its journal"):
        decode(data, PARTITION, FOLDER)


@pytest.mark.parametrize(
    "log",
    [
        {},
        [],
        {"winners": []},
        {**json.loads(encode(a_journal()))["log"], "winners": [["../../x", 1, 1]] * 3},
        {**json.loads(encode(a_journal()))["log"], "winners": [["same", 1, 1]] * 3},
        {**json.loads(encode(a_journal()))["log"], "winners": []},
        {**json.loads(encode(a_journal()))["log"], "segments": [[1]]},
        {**json.loads(encode(a_journal()))["log"], "checked": [[1, 2]]},
    ],
)
def test_sound_bytes_that_make_no_sense_are_no_journal(log: object) -> None:
    with pytest.raises(ValueError, match="makes no sense"):
        decode(journal_module._document(log), PARTITION, FOLDER)  # type: ignore[arg-type]


def test_another_versions_journal_is_not_gone_by(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encode(a_journal())
    monkeypatch.setattr(journal_module, "VERSION", 1)
    with pytest.raises(ValueError, match="another version"):
        decode(data, PARTITION, FOLDER)


@pytest.mark.parametrize("segments", [1, 2, 40, 1000])
def test_its_size_is_foreseen(segments: int) -> None:
    journal = a_journal(segments, checked=segments)
    producers = ((LARGE, LARGE, (1 << 15) - 1),) * 50
    worst = replace(journal.work, name="t" * 249 + "-1000000000", producers=producers)
    assert 2 * len(encode(replace(journal, work=worst))) <= size_at_most(worst, 1)


def _new(journal: Journal, group: int) -> Segment:
    checked = journal.checked[group]
    return replace(
        segment(10 * group),
        size=checked.rewritten.size,
        inode=checked.inode,
        modified_ns=checked.modified_ns,
    )


def test_the_directory_says_which_groups_are_done() -> None:
    journal = a_journal(checked=2)
    old, rest = list(journal.work.segments), list(journal.rest)
    new = [_new(journal, 0), _new(journal, 1)]
    assert groups_done(journal, [*old, *rest]) == 0
    assert groups_done(journal, [new[0], *old[1:], *rest]) == 1
    assert groups_done(journal, [*new, old[2], *rest]) == 2
    for odd in (
        [],
        old,
        [*old, *rest, segment(50)],
        [old[0], new[1], old[2], *rest],
        [*new, *rest],
        [*old[1:], *rest],
        [segment(0, inode=8), *old[1:], *rest],
        [replace(new[0], size=1), *old[1:], *rest],
        [new[0], segment(3), *old[1:], *rest],
        [*old, replace(rest[0], size=1)],
    ):
        assert groups_done(journal, odd) is None


@pytest.fixture
def staged(tmp_path: Path) -> LogWork:
    return replace(work(), staging=str(tmp_path))


WINNERS = np.array([7, 1, 4, 0xFFFFFFF0], np.uint32)


def test_winners_come_back_in_order(staged: LogWork, tmp_path: Path) -> None:
    file = write_winners(staged, staged.groups[1], WINNERS, "a")
    assert (file.group, file.count, file.trouble) == (1, 4, None)
    assert read_winners(tmp_path, file).tolist() == sorted(WINNERS.tolist())
    assert is_sound(tmp_path, file)
    none = write_winners(staged, staged.groups[2], WINNERS[:0], "a")
    assert (none.name, none.count) == ("", 0)
    assert len(read_winners(tmp_path, none)) == 0 and is_sound(tmp_path, none)
    assert [each.name for each in tmp_path.iterdir()] == [file.name]


def test_every_flipped_byte_and_every_cut_of_the_winners_is_seen(staged: LogWork, tmp_path: Path) -> None:
    file = write_winners(staged, staged.groups[0], WINNERS, "a")
    path = tmp_path / file.name
    data = path.read_bytes()
    changed = [data[:cut] for cut in range(len(data))] + [data + b"\0", data * 2]
    for position in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[position] ^= 1 << bit
            changed.append(bytes(flipped))
    for each in changed:
        path.write_bytes(each)
        assert not is_sound(tmp_path, file)
        with pytest.raises(CheckFailedError, match="not the winners"):
            read_winners(tmp_path, file)
    report = rewrite_from(staged, staged.groups[0], file, "b")
    assert report.trouble is not None and report.trouble.status == "failed"


def test_an_attempt_never_touches_anothers_winners(staged: LogWork, tmp_path: Path) -> None:
    file = write_winners(staged, staged.groups[0], WINNERS, "a")
    again = write_winners(staged, staged.groups[0], WINNERS[:2], "a")
    assert again.trouble is not None and again.trouble.status == "failed"
    assert is_sound(tmp_path, file)
    gone = replace(staged, staging=str(tmp_path / "gone"))
    late = write_winners(gone, staged.groups[0], WINNERS, "late")
    assert late.trouble is not None
    assert not (tmp_path / "gone").exists()
