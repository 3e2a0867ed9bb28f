"""Growing indexes against a plain list: looked up half in the file, half in memory."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from siltstone.log.segment import IndexEntry, IndexFile, SegmentDirectory

steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 5), st.integers(1, 5)),
        st.tuples(st.just("save"), st.just(0), st.just(0)),
        st.tuples(st.just("reopen"), st.just(0), st.just(0)),
        st.tuples(st.just("cut"), st.integers(0, 120), st.integers(0, 1)),
    ),
    max_size=40,
)


def index_file(path: Path, kind: str, size: int = 0, size_limit: int = 1 << 20) -> IndexFile:
    """The index of the segment at offset 0 in the directory of ``path``."""
    return IndexFile(SegmentDirectory(path.parent), 0, kind, size, size_limit)


def nine_entries(folder: Path) -> tuple[Path, IndexFile]:
    """The file of an offset index and the index: offsets 1 to 9, each at 100 times its number, saved."""
    path = folder / "00000000000000000000.index"
    path.write_bytes(b"")
    index = index_file(path, "index")
    for number in range(1, 10):
        index.add(number, 100 * number)
    index.save()
    return path, index


def _floor(entries: list[IndexEntry], key: int) -> IndexEntry | None:
    below = [entry for entry in entries if entry[0] <= key]
    return below[-1] if below else None


def _first_at(entries: list[IndexEntry], value: int) -> IndexEntry | None:
    return next((entry for entry in entries if entry[1] >= value), None)


@given(steps, st.sampled_from(["index", "timeindex"]))
def test_searches_return_what_a_plain_list_returns(script: list[tuple[str, int, int]], kind: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"00000000000000000000.{kind}"
        path.write_bytes(b"")
        index, model = index_file(path, kind), list[IndexEntry]()
        for step, first, second in script:
            if step == "add":
                last = model[-1] if model else (0, 0)
                model.append((last[0] + first, last[1] + second))
                index.add(*model[-1])
            elif step == "cut":
                model = [entry for entry in model if entry[second] < first]
                index.truncate(below=first, column=second)
            else:
                index.save()
                if step == "reopen":
                    index = index_file(path, kind, path.stat().st_size)
            assert len(index) == len(model)
            assert index.last() == (model[-1] if model else None)
        for key in range(0, 130, 3):
            assert index.floor(key) == _floor(model, key)
            assert index.first_at_position(key) == _first_at(model, key)


def test_an_index_is_full_at_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000000.index"
    path.write_bytes(b"")
    index = index_file(path, "index", size_limit=20)
    index.add(1, 100)
    assert not index.is_full
    index.add(2, 200)
    assert index.is_full
    assert index.size == 16


def test_searches_continue_after_the_file_was_unlinked(tmp_path: Path) -> None:
    path, index = nine_entries(tmp_path)
    index.keep_open()
    path.unlink()
    assert index.floor(5) == (5, 500)


def test_entries_that_are_truncated_leave_the_file_at_once(tmp_path: Path) -> None:
    """A crash before the next save leaves no entry of a truncated record."""
    path, index = nine_entries(tmp_path)
    index.truncate(below=6, column=0)
    assert path.stat().st_size == 5 * 8
    assert index_file(path, "index", 5 * 8).last() == (5, 500)


def test_a_time_index_holds_large_times(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000000.timeindex"
    path.write_bytes(b"")
    index = index_file(path, "timeindex")
    index.add(1 << 60, 7)
    index.save()
    assert path.read_bytes() == (1 << 60).to_bytes(8, "big") + (7).to_bytes(4, "big")
    assert index_file(path, "timeindex", 12).last() == (1 << 60, 7)


@pytest.mark.parametrize("missing", ["index", "timeindex"])
def test_an_empty_index_has_no_entry_for_any_key(tmp_path: Path, missing: str) -> None:
    index = index_file(tmp_path / f"0.{missing}", missing)
    assert index.last() is None
    assert index.floor(10) is None
    assert index.first_at_position(0) is None
