"""Swaps of several logs at one time: each waits for the disk most of its time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

Critical = Callable[[], contextlib.AbstractContextManager[object]]


@contextlib.contextmanager
def side_by_side(at_once: int, critical: Critical) -> Iterator[Callable[[Callable[[], object]], object]]:
    """What the body hands over is called in one of ``at_once`` threads, in this one where that is 1. All is
    done when the block is left; ``critical`` guards the wait.

    Interrupted, it leaves out what is not begun. Raises what a call raised.
    """
    if at_once == 1:
        yield lambda call: call()
        return
    calls: list[Future[object]] = []
    pool, is_interrupted = ThreadPoolExecutor(at_once, "swap"), True
    try:
        yield lambda call: calls.append(pool.submit(call))
        is_interrupted = False
    except Exception:
        is_interrupted = False
        raise
    finally:
        with critical():
            pool.shutdown(wait=True, cancel_futures=is_interrupted)
    for each in calls:
        each.result()
