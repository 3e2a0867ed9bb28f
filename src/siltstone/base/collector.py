"""Python's garbage collector, which finds the garbage that is in reference cycles.

As the number of objects grows, it visits all of them again and again, which takes a quarter of the time to
open 10,000 logs. With 100,000 logs one collection takes half a second, in which no other thread runs. So it
is paused while many long-lived objects are made. In a server it runs less often, and does not visit the
objects that were there at the start (``gc.freeze``).
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Pause collections in all threads while the block runs."""
    is_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_enabled:
            gc.enable()


_FULL_EVERY = 100
"""How many collections of the middle generation there are before a full one; Python's default is 10."""


def collect_less_often() -> None:
    """Let this process, a server, visit all its objects a tenth as often as by default.

    Parked fetches live until they are in the oldest generation, so with 1,000 consumers there was a full
    collection every second or two, which stops all threads for 12 to 150 ms. A request leaves no garbage in
    cycles, so fewer collections cost no memory.
    """
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, _FULL_EVERY)


def leave_out_of_collections() -> None:
    """Let collections leave out all objects that there are now: those of the libraries and of open logs stay
    as long as a server runs, and a visit to 200,000 of them stops all threads for 40 to 100 ms. Objects that
    are in no cycle are freed as before, by their reference counts."""
    gc.collect()
    gc.freeze()


def collect_all_again() -> None:
    """Undo ``leave_out_of_collections``, before the server ends and its objects become garbage."""
    gc.unfreeze()
