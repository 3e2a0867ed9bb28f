"""Python's garbage collector, which finds the garbage that is in reference cycles.

As the number of objects grows, it visits all of them again and again: a quarter of the time in which 10,000
logs are opened. With 100,000 logs one collection takes half a second, in which no other thread runs. So it is
paused while many objects are made that stay, and in a server it runs less often and visits no object that was
there at the start (``gc.freeze``).
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
    """Let this process, a server, visit all its objects a tenth as often as by default.

    Parked fetches live long enough to count as old, so with 1,000 consumers there was a full collection every
    second or two, which stops all threads for 12 to 150 ms. The garbage of a request is in no cycles.
    """
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, _FULL_EVERY)


def leave_out_of_collections() -> None:
    """Let collections leave out all objects that there are now: those of the libraries and of open logs stay
    as long as a server runs, and to visit 200,000 of them stops all threads for 40 to 100 ms. Objects that
    are in no cycle are freed as before."""
    gc.collect()
    gc.freeze()


def collect_all_again() -> None:
    """Undo ``leave_out_of_collections``, before the server ends and its objects become garbage."""
    gc.unfreeze()
