"""Each kind of problem that batches of a broker may have, and that sound ones have none."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest

from siltstone.base.records.scan import scan_batches
from siltstone.log.segments import Window
from siltstone.verify.fetched import FETCHED_PROBLEM_KINDS, FetchedCheck, FetchedVerdict
from tests.support.broker_twin.batches import TIME_MS, batch
from tests.support.log.crafted import craft, record
from tests.support.records import twin
from tests.support.records.arrays import array


def checked(*parts: Sequence[bytes], start: int = 0, end: int = 4) -> FetchedVerdict:
    """The verdict on windows of these batches."""
    check, origin = FetchedCheck("t", 0, start, end), 0
    for part in parts:
        data = array(b"".join(part))
        check.check(Window(data=data, batches=scan_batches(data).batches, origin=origin))
        origin += len(data)
    return check.finish()


@pytest.mark.parametrize("codec", range(5))
def test_sound_batches_have_no_problem(codec: int) -> None:
    parts = [batch(2, codec=codec)], [batch(1, base_offset=2, codec=codec), batch(1, base_offset=3)]
    verdict = checked(*parts)
    assert verdict.is_sound and verdict.problems == []
    assert (verdict.batches, verdict.records, verdict.largest_timestamp) == (3, 4, TIME_MS + 1)
    assert verdict.bytes == sum(map(len, (*parts[0], *parts[1])))
    assert checked(parts[0], parts[1], start=1).is_sound  # DeleteRecords within a batch
    assert checked([batch(2)], [batch(1, base_offset=9)], end=10).is_sound  # a cleaned log has gaps
    assert checked(start=7, end=7).is_sound


def test_old_formats_and_empty_batches_are_sound() -> None:
    for magic in (0, 1):
        messages = b"".join(twin.message(n, b"k", b"v", magic=magic, timestamp=TIME_MS + n) for n in range(3))
        wrapped = twin.wrapper(2, messages, 1, magic=magic, timestamp=TIME_MS + 2)
        for entries in (messages, wrapped):
            verdict = checked([entries, batch(1, base_offset=3)])
            assert verdict.is_sound, verdict.problems
            assert verdict.records == 4
    assert checked([craft(b"", 0, last_delta=3, max_timestamp=5)]).is_sound


@pytest.mark.parametrize(("kind", "parts"), [
    ("unreadable", [[batch(2, checksum=5), batch(2, base_offset=2)]]),
    ("unreadable", [[batch(2), craft(b"\0" * 9, 2, base_offset=2)]]),
    ("unreadable", [[batch(2), craft(b"rubbish", 2, attributes=4, base_offset=2)]]),
    ("order", [[batch(2), batch(3, base_offset=1)]]),
    ("order", [[batch(2)], [batch(3, base_offset=1)]]),
    ("unreadable", [[batch(4, last_delta=2), batch(1, base_offset=3)]]),
    ("unreadable", [[craft(record(1) + record(0), 2), batch(2, base_offset=2)]]),
    ("bounds", [[batch(2), batch(3, base_offset=2)]]),
    ("bounds", [[batch(3)]]),
    ("bounds", []),
    ("batch_times", [[batch(4, max_timestamp=TIME_MS + 2)]]),
    ("batch_times", [[batch(4, max_timestamp=TIME_MS + 4)]]),
])  # fmt: skip
def test_each_kind_of_problem_is_found(kind: str, parts: Sequence[Sequence[bytes]]) -> None:
    verdict = checked(*parts)
    assert dict(verdict.found) == {kind: 1}, verdict.problems
    assert verdict.to_json()["found"] == {kind: 1} and verdict.to_json()["status"] == "problems"


def test_batches_below_the_log_start_are_out_of_bounds() -> None:
    verdict = checked([batch(2), batch(2, base_offset=2)], start=2)
    assert dict(verdict.found) == {"bounds": 1}


def test_changed_bytes_are_found(seed: int = 26) -> None:
    """Any byte behind the size and the leader epoch, which no checksum covers."""
    rng = random.Random(seed)
    whole = [batch(2), batch(2, codec=4, base_offset=2)]
    for _ in range(200):
        data = array(b"".join(whole))
        place = rng.randrange(21, len(data))
        if len(whole[0]) <= place < len(whole[0]) + 21:
            continue
        data[place] ^= 1 << rng.randrange(8)
        batches = scan_batches(data).batches
        check = FetchedCheck("t", 0, 0, 4)
        check.check(Window(data=data, batches=batches, origin=0))
        assert not check.finish().is_sound, (seed, place)


def test_all_problems_are_counted() -> None:
    """In one window and in several; the first few are listed."""
    behind = [batch(1, base_offset=0) for _ in range(9)]
    early = [batch(1, base_offset=n) for n in range(9)]
    late = [batch(1, base_offset=n, max_timestamp=TIME_MS + 9) for n in range(9)]
    for kind, parts, start, count in (
        ("order", [behind], 0, 8),
        ("order", [behind, behind], 0, 17),
        ("bounds", [early[:7]], 7, 7),
        ("batch_times", [late], 0, 9),
        ("batch_times", [late[:7], late[7:]], 0, 9),
    ):
        verdict = checked(*parts, start=start, end=9)
        assert (verdict.found[kind], len(verdict.problems)) == (count, 5), (kind, verdict.problems)


def test_only_the_first_problems_are_listed() -> None:
    verdict = checked([batch(1, base_offset=n, checksum=5) for n in range(9)], end=9)
    assert (len(verdict.problems), verdict.found["unreadable"]) == (5, 9)
    assert verdict.problems[1].position == len(batch(1))
    assert set(verdict.found) <= set(FETCHED_PROBLEM_KINDS)
    assert np.all([problem.offset == number for number, problem in enumerate(verdict.problems)])
