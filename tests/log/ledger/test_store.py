"""The store: what is committed counts, what is wrong is refused, what is read stays, the rest goes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from siltstone.base.errors import CheckFailedError, LedgerError
from siltstone.log.ledger.manifest import Cursor, Ledger, encode_cursor
from siltstone.log.ledger.store import LedgerStore, delete_cursor_beyond
from tests.support.cleaning.logs import Rec
from tests.support.errors import raises_error
from tests.support.log import plainly

LOG = "00000000000000000020.log"


def recs(*offsets: int) -> list[Rec]:
    return [Rec(offset=offset, key=b"k%d" % offset, value=b"v%d" % offset) for offset in offsets]


def names(store: LedgerStore) -> list[str]:
    return sorted(path.name for path in store.folder.iterdir())


def committed(store: LedgerStore, end: int = 20, name: str = "aa") -> Ledger:
    """One more ledger, of one new run."""
    old = store.current()
    ledger_id, run_id = store.next_ids()
    base = 0 if old is None else old.horizon
    staging = store.make_staging(name)
    new, staged = plainly.stage(staging, run_id, (base, end), recs(*range(base, end, 2)))
    runs = [*(old.runs if old else ()), new]
    superseded = {} if old is None else store.superseded(old)
    return store.commit(plainly.ledger_of(ledger_id, runs), superseded, {run_id: staged})


def hiding(store: LedgerStore, *offsets: int) -> Ledger:
    """The current ledger with offsets of its first run superseded, under the next id."""
    old = store.current()
    assert old is not None
    first = replace(old.runs[0], superseded=len(offsets))
    again = plainly.ledger_of(store.next_ids()[0], [first, *old.runs[1:]])
    return store.commit(again, {first.id: np.array(offsets)}, {})


@pytest.fixture
def store(tmp_path: Path) -> LedgerStore:
    partition = tmp_path / "topic-0"
    partition.mkdir()
    return LedgerStore(partition)


def test_a_log_that_was_never_compacted_has_nothing(store: LedgerStore) -> None:
    assert (store.cursor(), store.current(), store.open(), store.first_needed_offset()) == (
        None,
        None,
        None,
        None,
    )
    assert store.next_ids() == (0, 0)
    assert store.delete_unused() == []
    store.delete_cursor()
    assert not store.folder.exists()


def test_what_was_committed_is_current(store: LedgerStore) -> None:
    ledger = committed(store)
    assert store.current() == ledger
    assert store.cursor() == Cursor(horizon=20, ledger_id=0)
    assert store.first_needed_offset() == 20
    assert store.next_ids() == (1, 1)
    ledger = store.open()
    assert ledger is not None
    with contextlib.closing(ledger):
        views = [part.view for part in ledger.segments]
        assert [view.segments[0].base_offset for view in views] == [0, 12]
        assert [(view.log_start_offset, view.high_watermark) for view in views] == [(0, 12), (12, 20)]
        assert [part.view.log_end_offset for part in ledger.segments] == [12, 20]


def test_hidden_offsets_belong_to_their_ledger(store: LedgerStore) -> None:
    first = committed(store)
    second = hiding(store, 2, 14)
    assert store.superseded(first) == {}
    assert {run_id: offsets.tolist() for run_id, offsets in store.superseded(second).items()} == {0: [2, 14]}
    assert (first.entries, second.entries) == (10, 8)


def test_an_old_ledger_is_deleted_when_no_reader_has_it(store: LedgerStore) -> None:
    committed(store)
    ledger = store.open()
    assert ledger is not None
    staging = store.make_staging("bb")
    new, staged = plainly.stage(staging, 1, (0, 30), recs(1, 25))
    store.commit(plainly.ledger_of(1, [new]), {}, {1: staged})
    assert store.first_needed_offset() == 20
    assert sorted(store.delete_unused()) == ["run-aa", "run-bb"]
    assert {"ledger-0.json", "generation-0"} <= set(names(store))
    ledger.close()
    ledger.close()
    assert store.first_needed_offset() == 30
    assert store.delete_unused() == ["ledger-0.json", "generation-0"]
    assert names(store) == ["cursor.json", "generation-1", "ledger-1.json"]


def test_a_generation_stays_as_long_as_a_ledger_names_it(store: LedgerStore) -> None:
    committed(store)
    committed(store, 40, "bb")
    store.delete_unused()
    assert names(store) == ["cursor.json", "generation-0", "generation-1", "ledger-1.json"]


def test_a_process_that_ends_lets_go(store: LedgerStore) -> None:
    committed(store)
    child = os.fork()
    if child == 0:
        ledger = store.open()
        os._exit(0 if ledger is not None else 1)
    assert os.waitpid(child, 0)[1] == 0
    hiding(store, 2)
    assert "ledger-0.json" in store.delete_unused()


def test_leftovers_of_runs_and_crashes_are_collected(store: LedgerStore) -> None:
    committed(store)
    store.make_staging("cc")
    for name in ("ledger-7.json", "ledger-8.hidden", "ledger-9.json"):
        (store.folder / name).write_bytes(b"half of one")
    (store.folder / "generation-5").mkdir()
    (store.folder / "generation-5" / "keys").write_bytes(b"")
    assert store.next_ids() == (10, 6)
    assert sorted(store.delete_unused(keep=["run-cc"])) == [
        "generation-5",
        "ledger-7.json",
        "ledger-8.hidden",
        "ledger-9.json",
        "run-aa",
    ]
    assert names(store) == ["cursor.json", "generation-0", "ledger-0.json", "run-cc"]


def test_what_is_not_the_stores_is_left_alone(store: LedgerStore) -> None:
    committed(store)
    (store.folder / "status.json").write_bytes(b"{}")
    store.delete_unused()
    assert "status.json" in names(store)


def test_a_damaged_ledger_that_is_read_keeps_all_generations(store: LedgerStore) -> None:
    committed(store)
    ledger = store.open()
    assert ledger is not None
    staging = store.make_staging("bb")
    new, staged = plainly.stage(staging, 1, (0, 30), recs(1, 25))
    store.commit(plainly.ledger_of(1, [new]), {}, {1: staged})
    with (store.folder / "ledger-0.json").open("r+b") as file:
        file.write(b"x")
    store.delete_unused()
    assert "generation-0" in names(store)
    with raises_error(LedgerError, path=store.folder / "ledger-0.json"):
        store.first_needed_offset()


def test_runs_stay_while_the_manifest_of_the_current_ledger_is_missing(store: LedgerStore) -> None:
    """The manifest may come back from a backup; the runs would not."""
    committed(store)
    hiding(store, 2)
    manifest = store.folder / "ledger-1.json"
    data = manifest.read_bytes()
    manifest.unlink()
    assert store.delete_unused() == ["ledger-0.json", "run-aa"]
    assert store.delete_unused() == []
    manifest.write_bytes(data)
    with contextlib.closing(store.open()) as opened:  # type: ignore[type-var]
        assert opened is not None and len(opened.segments) == 2


def test_two_runs_of_one_name_are_refused(store: LedgerStore) -> None:
    store.make_staging("aa")
    with pytest.raises(FileExistsError, match="run-aa"):
        store.make_staging("aa")


# Forgetting


def test_a_forgotten_ledger_is_gone_for_new_readers_only(store: LedgerStore) -> None:
    committed(store)
    ledger = store.open()
    assert ledger is not None
    store.delete_cursor()
    store.delete_cursor()
    assert (store.cursor(), store.current(), store.open()) == (None, None, None)
    assert store.first_needed_offset() == 20
    store.delete_unused()
    assert "generation-0" in names(store)
    ledger.close()
    store.delete_unused()
    assert (names(store), store.first_needed_offset()) == ([], None)


@pytest.mark.parametrize(("end", "goes"), [(19, True), (20, False), (21, False), (0, True)])
def test_a_ledger_is_forgotten_when_the_log_ends_below_its_horizon(
    store: LedgerStore, end: int, goes: bool
) -> None:
    committed(store)
    delete_cursor_beyond(store.folder.parent, end)
    assert store.cursor() == (None if goes else Cursor(horizon=20, ledger_id=0))


# What a commit refuses


def _hides_what_it_has_not(ledger: Ledger) -> tuple[Ledger, dict[int, list[int]]]:
    return with_superseded(ledger, 1), {0: [20]}


def _hides_in_no_order(ledger: Ledger) -> tuple[Ledger, dict[int, list[int]]]:
    return with_superseded(ledger, 2), {0: [4, 2]}


def _hides_twice(ledger: Ledger) -> tuple[Ledger, dict[int, list[int]]]:
    return with_superseded(ledger, 2), {0: [4, 4]}


def _counts_wrong(ledger: Ledger) -> tuple[Ledger, dict[int, list[int]]]:
    return with_superseded(ledger, 2), {0: [4]}


def _hides_in_no_generation(ledger: Ledger) -> tuple[Ledger, dict[int, list[int]]]:
    return ledger, {9: [4]}


def _goes_back(ledger: Ledger) -> tuple[Ledger, dict[int, list[int]]]:
    first = replace(ledger.runs[0], end_offset=19)
    return replace(ledger, horizon=19, runs=(first,)), {}


def _has_the_old_id(ledger: Ledger) -> tuple[Ledger, dict[int, list[int]]]:
    return replace(ledger, id=0), {}


def _leaves_a_gap(ledger: Ledger) -> tuple[Ledger, dict[int, list[int]]]:
    return replace(ledger, horizon=25), {}


def with_superseded(ledger: Ledger, count: int) -> Ledger:
    first = replace(ledger.runs[0], superseded=count)
    return replace(ledger, runs=(first, *ledger.runs[1:]))


REFUSED = [
    _hides_what_it_has_not,
    _hides_in_no_order,
    _hides_twice,
    _counts_wrong,
    _hides_in_no_generation,
    _goes_back,
    _has_the_old_id,
    _leaves_a_gap,
]


@pytest.mark.parametrize("wrong", REFUSED)
def test_a_ledger_that_does_not_hold_is_refused(
    store: LedgerStore, wrong: Callable[[Ledger], tuple[Ledger, dict[int, list[int]]]]
) -> None:
    first = committed(store)
    store.delete_unused()
    before = names(store)
    ledger, superseded = wrong(replace(first, id=1))
    with raises_error(CheckFailedError, path=store.folder, advice="compact the log again"):
        store.commit(ledger, {run_id: np.array(offsets) for run_id, offsets in superseded.items()}, {})
    assert (store.current(), names(store)) == (first, before)


def _other_log(directory: Path) -> None:
    data = bytearray((directory / LOG).read_bytes())
    data[7] ^= 1  # a base offset: no batch's checksum covers it
    (directory / LOG).write_bytes(data)


def _shorter_log(directory: Path) -> None:
    os.truncate(directory / LOG, 60)


def _no_index(directory: Path) -> None:
    (directory / LOG).with_suffix(".index").unlink()


def _other_keys(directory: Path) -> None:
    (directory / "keys").write_bytes((directory / "keys").read_bytes()[::-1])


def _no_keys(directory: Path) -> None:
    (directory / "keys").unlink()


@pytest.mark.parametrize("spoil", [_other_log, _shorter_log, _no_index, _other_keys, _no_keys])
def test_staged_files_are_what_the_manifest_says(store: LedgerStore, spoil: Callable[[Path], None]) -> None:
    first = committed(store)
    new, staged = plainly.stage(store.make_staging("bb"), 1, (20, 30), recs(20, 25))
    spoil(staged)
    with raises_error(CheckFailedError, about="run 1", advice="cursor has not moved"):
        store.commit(plainly.ledger_of(1, [*first.runs, new]), {}, {1: staged})
    assert store.current() == first
    assert staged.exists()


def test_the_cursor_does_not_move_to_what_does_not_read_back(
    store: LedgerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = committed(store)
    monkeypatch.setattr("siltstone.log.ledger.store.encode_manifest", lambda ledger: b"{}")
    with raises_error(CheckFailedError, advice="cursor has not moved"):
        committed(store, 40, "bb")
    monkeypatch.undo()
    assert store.current() == first
    store.delete_unused()
    assert names(store) == ["cursor.json", "generation-0", "ledger-0.json"]


# What is missing or damaged is an error with its name


def _files(store: LedgerStore) -> list[Path]:
    return sorted(path for path in store.folder.rglob("*") if path.is_file())


def full(store: LedgerStore) -> Ledger:
    """A ledger with every kind of file, and nothing but that."""
    committed(store)
    committed(store, 30, "bb")
    ledger = hiding(store, 2, 14)
    store.delete_unused()
    return ledger


def test_a_file_that_is_missing_is_named(store: LedgerStore) -> None:
    full(store)
    paths = [path for path in _files(store) if path.name != "cursor.json"]
    assert len(paths) == 2 + 2 * 3 + 1 + 3 + 1
    for path in paths:
        data = path.read_bytes()
        path.unlink()
        with raises_error(LedgerError, path=path) as caught:
            store.open() if path.name != "keys" else store.current()
        assert caught.value.reason == "the file is missing"
        path.write_bytes(data)
    assert store.current() is not None


def test_a_file_of_another_size_is_named(store: LedgerStore) -> None:
    full(store)
    for path in _files(store):
        data = path.read_bytes()
        for other in (data[:-1], data + b"\0", b""):
            path.write_bytes(other)
            with raises_error(LedgerError, path=path):
                (store.open(), store.current())
        path.write_bytes(data)
    assert store.current() is not None


def test_a_generation_that_is_missing_is_named(store: LedgerStore) -> None:
    full(store)
    (store.folder / "generation-1").rename(store.folder / "elsewhere")
    with raises_error(LedgerError) as caught:
        store.open()
    assert "generation-1" in caught.value.path


def test_retention_learns_of_damage(store: LedgerStore) -> None:
    """Originals may be all that is left to compact anew from."""
    full(store)
    (store.folder / "ledger-2.json").unlink()
    with raises_error(LedgerError, path=store.folder / "ledger-2.json"):
        store.first_needed_offset()


def test_a_cursor_and_a_ledger_that_do_not_fit_are_refused(store: LedgerStore) -> None:
    committed(store)
    original = (store.folder / "cursor.json").read_bytes()
    committed(store, 30, "bb")
    (store.folder / "ledger-1.json").unlink()
    (store.folder / "cursor.json").write_bytes(original)
    assert store.cursor() == Cursor(horizon=20, ledger_id=0)
    (store.folder / "cursor.json").write_bytes(encode_cursor(Cursor(horizon=21, ledger_id=0)))
    with raises_error(LedgerError, path=store.folder / "cursor.json", about="horizon 21"):
        store.current()


def test_an_error_says_what_to_do(store: LedgerStore) -> None:
    full(store)
    (store.folder / "ledger-2.hidden").unlink()
    with raises_error(LedgerError, advice="siltstone compact-topic --reset"):
        store.open()


def test_empty_generations_and_ledgers_can_be_read(store: LedgerStore) -> None:
    staging = store.make_staging("aa")
    new, staged = plainly.stage(staging, 0, (0, 10), [])
    store.commit(plainly.ledger_of(0, [new]), {}, {0: staged})
    ledger = store.open()
    assert ledger is not None
    assert ledger.segments == ()
    ledger.close()
    store.commit(plainly.ledger_of(1, [], horizon=10), {}, {})
    assert store.delete_unused() == ["ledger-0.json", "generation-0", "run-aa"]
    ledger = store.open()
    assert ledger is not None
    assert (ledger.segments, ledger.ledger.horizon) == ((), 10)
    ledger.close()
