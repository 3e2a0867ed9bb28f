"""A crash at every step of giving producer ids: an id that was given is never given again."""

from __future__ import annotations

from pathlib import Path

import pytest

from siltstone.broker.producer_ids import BLOCK, ProducerIds
from tests.support.crash.disk import DROP, KEEP, Disk, Variant, recorded
from tests.support.log.managed import opened

pytestmark = pytest.mark.random
DIRECTORIES = ("a", "b")
VARIANTS: tuple[Variant, ...] = (KEEP, DROP, 1, 2, 3)


def test_an_id_that_was_given_is_never_given_again(tmp_path: Path) -> None:
    directories = [tmp_path / directory for directory in DIRECTORIES]
    opened(*directories).close()
    taken = list[tuple[int, int]]()
    with recorded(tmp_path) as recording, opened(*directories) as logs:
        for _ in range(2):  # two programs, one after the other, as far as the ids are concerned
            ids = ProducerIds(logs)
            taken += [(ids.take(), len(recording.steps)) for _ in range(BLOCK + 1)]
    alike, tried = set[int](), 0
    for count in range(len(recording.steps) + 1):
        largest = max((producer_id for producer_id, steps in taken if steps <= count), default=-1)
        for variant in VARIANTS:
            if Disk(recording, count).build(variant, alike):
                tried += 1
                with opened(*directories) as logs:
                    first = ProducerIds(logs).take()
                assert first > largest, (count, variant)
                assert first <= largest + 2 * BLOCK, (count, variant)  # a damaged file would skip more
    assert tried > 10
