"""Cursors, manifests and superseded offsets as bytes: there and back, and no damage goes unnoticed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from siltstone.base.errors import LedgerError
from siltstone.log.ledger.manifest import (
    Cursor,
    Ledger,
    Run,
    SegmentEntry,
    broken_rule,
    decode_cursor,
    decode_manifest,
    decode_superseded,
    encode_cursor,
    encode_manifest,
    encode_superseded,
    seal,
    unseal,
)
from tests.support.errors import raises_error
from tests.support.thoroughness import share

PATH = Path("ledger-5.json")
PARTS = (
    SegmentEntry(base_offset=3, size=70, crc=1, index_crc=2, time_index_crc=3),
    SegmentEntry(base_offset=60, size=30, crc=4, index_crc=5, time_index_crc=6),
)
OLD = Run(
    id=3,
    base_offset=0,
    end_offset=100,
    records=9,
    size=100,
    segments=PARTS,
    keys_size=5,
    keys_crc=8,
    superseded=2,
)
EMPTY = Run(
    id=4,
    base_offset=100,
    end_offset=120,
    records=0,
    size=0,
    segments=(),
    keys_size=0,
    keys_crc=0,
    superseded=0,
)
LEDGER = Ledger(
    id=5,
    horizon=120,
    runs=(OLD, EMPTY),
    order="time",
    hash_key=(1, (1 << 64) - 1),
    retain_null_key=True,
    created_ms=1_800_000_000_000,
    superseded_crc=77,
)


def damaged(data: bytes) -> list[bytes]:
    """Every byte another one in three ways, every byte missing, every end missing, something behind it."""
    flipped = [
        data[:at] + bytes([data[at] ^ mask]) + data[at + 1 :]
        for at in range(len(data))
        for mask in (1, 0x20, 0xFF)
    ]
    missing = [data[:at] + data[at + 1 :] for at in range(len(data))]
    ends = [data[:at] for at in range(len(data))]
    return [variant for variant in [*flipped, *missing, *ends, data + b"\n", data + data] if variant != data]


def test_a_manifest_comes_back_as_it_was() -> None:
    assert decode_manifest(PATH, encode_manifest(LEDGER)) == LEDGER


def test_a_ledger_has_the_sums_of_its_runs() -> None:
    assert (LEDGER.entries, LEDGER.size, LEDGER.base_offset) == (7, 100, 0)


@pytest.mark.parametrize("data", [encode_manifest(LEDGER)])
def test_no_damage_of_a_manifest_goes_unnoticed(data: bytes) -> None:
    for variant in damaged(data):
        with raises_error(LedgerError, path=PATH):
            decode_manifest(PATH, variant)


def test_no_damage_of_a_cursor_goes_unnoticed() -> None:
    path = Path("cursor.json")
    for variant in damaged(encode_cursor(Cursor(horizon=120, ledger_id=5))):
        with raises_error(LedgerError, path=path):
            decode_cursor(path, variant)


def test_a_manifest_under_another_name_is_refused() -> None:
    with raises_error(LedgerError, path="ledger-6.json", about="manifest of ledger 5"):
        decode_manifest(Path("ledger-6.json"), encode_manifest(LEDGER))


def test_nested_json_is_refused() -> None:
    """Also if the manifest can be read, but not written again."""
    for depth in (*share(range(100, 1_000, 11), of=13), 100_000):
        with raises_error(LedgerError, path=PATH):
            unseal(PATH, b'{"version": 1, "a": ' + b"[" * depth + b"]" * depth + b"}")


def test_a_negative_count_of_superseded_offsets_is_refused() -> None:
    data = bytearray(encode_superseded(5, {3: 0}, {3: np.array([4, 7])}))
    data[32:40] = (-1).to_bytes(8, "little", signed=True)
    ledger = replace(LEDGER, superseded_crc=crc32c(bytes(data)))
    with raises_error(LedgerError, path="ledger-5.hidden", about="superseded offsets"):
        decode_superseded(Path("ledger-5.hidden"), bytes(data), ledger)


def test_a_later_version_is_refused_as_such() -> None:
    data = encode_manifest(LEDGER).replace(b'"version": 1', b'"version": 2')
    with raises_error(LedgerError, path=PATH, about="version 2", advice="newer Siltstone"):
        decode_manifest(PATH, data)


def test_the_cursor_says_what_pulsar_shows() -> None:
    shown = json.loads(encode_cursor(Cursor(horizon=120, ledger_id=5)))
    assert shown["markDeletePosition"] == 119
    assert shown["properties"] == {"CompactedTopicLedger": 5}


@settings(deadline=None)
@given(st.integers(0, 1 << 62), st.integers(0, 1 << 62))
def test_a_cursor_comes_back_as_it_was(horizon: int, ledger_id: int) -> None:
    cursor = Cursor(horizon=horizon, ledger_id=ledger_id)
    assert decode_cursor(Path("cursor.json"), encode_cursor(cursor)) == cursor


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"markDeletePosition": 4},
        {"markDeletePosition": -2, "properties": {"CompactedTopicLedger": 5}},
        {"markDeletePosition": "4", "properties": {"CompactedTopicLedger": 5}},
        {"markDeletePosition": 4, "properties": []},
    ],
)
def test_what_is_sound_but_no_cursor_is_refused(fields: dict[str, object]) -> None:
    with raises_error(LedgerError, path="cursor.json", about="compaction cursor"):
        decode_cursor(Path("cursor.json"), seal(fields))


@pytest.mark.parametrize("missing", ["generations", "hash_key", "order", "horizon"])
def test_what_is_sound_but_no_manifest_is_refused(missing: str) -> None:
    fields = unseal(PATH, encode_manifest(LEDGER))
    del fields[missing]
    with raises_error(LedgerError, path=PATH, about="manifest"):
        decode_manifest(PATH, seal(fields))


@pytest.mark.parametrize(
    ("ledger", "wrong"),
    [
        (replace(LEDGER, order="size"), "order"),
        (replace(LEDGER, horizon=121), "do not end at the horizon"),
        (replace(LEDGER, runs=(OLD, replace(EMPTY, base_offset=101))), "gaps or overlap"),
        (replace(LEDGER, runs=(OLD, replace(EMPTY, base_offset=99))), "gaps or overlap"),
        (replace(LEDGER, runs=(OLD, replace(EMPTY, id=3))), "listed twice"),
        (replace(LEDGER, runs=(replace(OLD, superseded=10), EMPTY)), "more superseded records than"),
        (replace(LEDGER, runs=(replace(OLD, size=101), EMPTY)), "not of its size"),
        (replace(LEDGER, runs=(replace(OLD, segments=PARTS[::-1]), EMPTY)), "segments"),
        (
            replace(
                LEDGER, runs=(replace(OLD, segments=(replace(PARTS[0], base_offset=-1), PARTS[1])), EMPTY)
            ),
            "segments",
        ),
        (
            replace(
                LEDGER, runs=(replace(OLD, segments=(PARTS[0], replace(PARTS[1], base_offset=100))), EMPTY)
            ),
            "segments",
        ),
        (
            replace(
                LEDGER,
                runs=(
                    replace(OLD, segments=(replace(PARTS[0], size=110), replace(PARTS[1], size=-10))),
                    EMPTY,
                ),
            ),
            "segments",
        ),
        (
            replace(LEDGER, runs=(replace(OLD, base_offset=60), EMPTY)),
            "segments",
        ),
        (replace(LEDGER, horizon=1 << 63, runs=(OLD, replace(EMPTY, end_offset=1 << 63))), "no offsets"),
        (replace(LEDGER, superseded_crc=None), "without a file"),
        (replace(LEDGER, runs=(replace(OLD, superseded=0), EMPTY)), "without a file"),
    ],
)
def test_what_cannot_be_a_ledger_is_an_error(ledger: Ledger, wrong: str) -> None:
    assert wrong in broken_rule(ledger)


def test_a_ledger_may_have_no_generation() -> None:
    nothing = replace(LEDGER, runs=(), superseded_crc=None)
    assert broken_rule(nothing) == ""
    assert (nothing.base_offset, nothing.entries) == (120, 0)


OFFSETS = st.sets(st.integers(0, 1 << 40), max_size=20).map(
    lambda offsets: np.array(sorted(offsets), np.int64)
)


@settings(deadline=None)
@given(st.dictionaries(st.integers(0, 9), OFFSETS, max_size=4), st.integers(0, 1 << 40))
def test_hidden_offsets_come_back_as_they_were(hidden: dict[int, np.ndarray], base: int) -> None:
    superseded = {run_id: offsets + base for run_id, offsets in hidden.items() if len(offsets)}
    data = encode_superseded(5, dict.fromkeys(superseded, base), superseded)
    runs = tuple(replace(EMPTY, id=run_id, base_offset=base) for run_id in superseded)
    ledger = replace(LEDGER, runs=runs, superseded_crc=crc32c(data))
    again = decode_superseded(Path("ledger-5.hidden"), data, ledger)
    assert again.keys() == superseded.keys()
    assert all((again[run_id] == superseded[run_id]).all() for run_id in superseded)


def test_no_damage_of_hidden_offsets_goes_unnoticed() -> None:
    superseded = {3: np.array([5, 9, 1 << 33]), 4: np.array([100])}
    data = encode_superseded(5, {3: 0, 4: 100}, superseded)
    ledger = replace(LEDGER, superseded_crc=crc32c(data))
    for variant in damaged(data):
        with raises_error(LedgerError, path="ledger-5.hidden"):
            decode_superseded(Path("ledger-5.hidden"), variant, ledger)


def test_hidden_offsets_of_another_ledger_are_refused() -> None:
    data = encode_superseded(6, {3: 0}, {3: np.array([5])})
    with raises_error(LedgerError, path="ledger-5.hidden", about="ledger 5"):
        decode_superseded(Path("ledger-5.hidden"), data, replace(LEDGER, superseded_crc=crc32c(data)))
