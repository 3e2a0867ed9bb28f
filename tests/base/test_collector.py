"""The collector rests while a block runs, and is afterwards as it was."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from siltstone.base.collector import collect_less_often, collector_paused


@pytest.mark.parametrize("is_enabled", [True, False])
def test_the_collector_is_paused_in_the_block_alone(is_enabled: bool) -> None:
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


LEFT_OUT = """
import gc, weakref
from siltstone.base.collector import collect_all_again, leave_out_of_collections

class Node:
    pass

def cycle():
    node = Node()
    node.itself = node
    return weakref.ref(node)

before = Node()
before.itself = before
seen = weakref.ref(before)
leave_out_of_collections()
del before
later = cycle()
gc.collect()
print(gc.get_freeze_count() > 1000, seen() is not None, later() is None)
collect_all_again()
gc.collect()
print(gc.get_freeze_count(), seen())
"""


def test_objects_of_before_are_left_out_until_all_are_collected_again() -> None:
    """In a process of its own: this one has frozen objects already."""
    completed = subprocess.run([sys.executable, "-c", LEFT_OUT], capture_output=True, text=True, check=False)
    assert completed.stdout.splitlines() == ["True True True", "0 None"], completed.stderr
