"""Python's collector of cyclic garbage: paused while many objects are made that stay; in a server it is
seldom at work, and leaves out what was there at the start.

It goes over all objects again and again as their number grows: a quarter of the time in which 10,000 logs are
opened, and half a second for 100,000 logs in which no other thread runs.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """No collection while the block runs, in any thread; afterwards as before."""
    is_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_enabled:
            gc.enable()


_FULL_EVERY = 100
"""A full collection comes after so many of the middle generation; Python's default is 10."""


def collect_less_often() -> None:
    """Let this process, a server, go over all its objects a tenth as often as by default.

    Parked fetches live long enough to count as old, so with 1,000 consumers every second or two all objects
    were gone over, which stops all threads for 12 to 150 ms. What a request leaves is no cyclic garbage.
    """
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, _FULL_EVERY)


def leave_out_of_collections() -> None:
    """Let collections leave out all objects that there are now: those of the libraries and of open logs stay
    as long as a server runs, and going over 200,000 of them stops all threads for 40 to 100 ms. What is not
    garbage of a cycle is freed as before."""
    gc.collect()
    gc.freeze()


def collect_all_again() -> None:
    """The reverse, before those objects are given up."""
    gc.unfreeze()
