"""The collector rests while a block runs, and is afterwards as it was."""

from __future__ import annotations

import gc

import pytest

from siltstone.base.collector import collect_less_often, collector_paused


@pytest.mark.parametrize("is_enabled", [True, False])
def test_it_is_paused_in_the_block_alone(is_enabled: bool) -> None:
    before = gc.isenabled()
    try:
        (gc.enable if is_enabled else gc.disable)()
        with pytest.raises(ValueError, match="within"), collector_paused():
            assert not gc.isenabled()
            raise ValueError("within")
        assert gc.isenabled() == is_enabled
    finally:
        (gc.enable if before else gc.disable)()


def test_only_full_collections_come_less_often() -> None:
    before = gc.get_threshold()
    try:
        collect_less_often()
        assert gc.get_threshold() == (*before[:2], 100)
    finally:
        gc.set_threshold(*before)
