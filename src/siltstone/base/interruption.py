"""Ctrl-C and SIGTERM in a command: the work is interrupted, and the process ends within five seconds.

::

    signal ─┬─► main thread: KeyboardInterrupt, once, at once or at the end of its critical section
            └─► a thread that the signal wakes through a socket, even while the main thread is in C code
                  ├─ at once: other processes (Java, and the workers that depend on it) are ended
                  └─ after ``GRACE_SECONDS``: os._exit(128 + signal)

An interrupt anywhere is safe, as ``kill -9`` is; the grace is there to remove staged files. PySpark and numba
may swallow a KeyboardInterrupt or raise another error in its place: so call ``check`` before something new is
begun, and ``has_come`` before an error is taken for one. A second signal changes nothing.

Only commands install an ``Interruption``. Everywhere else ``current`` is one that never comes, and handlers
are replaced only within ``critical``, in the main thread.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator

GRACE_SECONDS = 4.0
"""From the signal to ``os._exit``; that leaves the system a second to end the process."""
SETTLE_SECONDS = 2.5
"""Cleaning up waits so long for other processes to end."""
SIGNALS = (signal.SIGINT, signal.SIGTERM)
CriticalSection = Callable[[], contextlib.AbstractContextManager[object]]
"""Guards a block that an interrupt must not break off half-way: ``Interruption.critical``, or no guard."""
INTERRUPTED_MESSAGE = "interrupted; every log is whole, run the command again to go on"


class Interruption:
    """Whether a signal has come, and what is done then.

    ``leave`` ends the process with a status; ``say`` is called before it, with a line for people.
    """

    def __init__(
        self,
        *,
        grace_seconds: float = GRACE_SECONDS,
        leave: Callable[[int], object] = os._exit,
        say: Callable[[str], object] = lambda line: None,
    ) -> None:
        self._grace_seconds = grace_seconds
        self._leave = leave
        self._say = say
        self._number: int | None = None
        self._is_installed = self._is_raised = False
        self._depth = 0
        self._endings: list[Callable[[], object]] = []
        self._ended = threading.Event()

    @property
    def has_come(self) -> bool:
        """Did a signal come?"""
        return self._number is not None

    @property
    def status(self) -> int:
        """The exit status that shells know: 130 after SIGINT, 143 after SIGTERM."""
        return 128 + (self._number or signal.SIGINT)

    def check(self) -> None:
        """Raises KeyboardInterrupt after a signal: before something new is begun."""
        if self.has_come:
            raise KeyboardInterrupt

    def on_signal(self, end: Callable[[], object]) -> None:
        """Call ``end`` in another thread as soon as a signal comes; here and now, if one has come."""
        self._endings.append(end)
        if self.has_come:
            end()

    def wait_for_endings(self) -> None:
        """After a signal: wait up to ``SETTLE_SECONDS`` until other processes have ended."""
        if self.has_come and self._is_installed:
            self._ended.wait(SETTLE_SECONDS)

    @contextlib.contextmanager
    def critical(self) -> Iterator[None]:
        """Within the block, in the main thread, a signal's KeyboardInterrupt waits for the end of it.

        A block that begins after the signal, to clean up, waits until other processes have ended.
        """
        self.wait_for_endings()
        if threading.current_thread() is not threading.main_thread():
            yield
        elif not self._is_installed:
            with _deferred():
                yield
        else:
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
                self._raise_once()

    def install(self) -> None:
        """Handle the signals from now on and become ``current``; in the main thread. A signal that is
        ignored, as with ``nohup`` or in the background of a script, stays ignored."""
        global _current
        self._waking, self._writing = socket.socketpair()
        self._writing.setblocking(False)
        self._is_installed, _current = True, self
        threading.Thread(target=self._watch, name="interruption", daemon=True).start()
        signal.set_wakeup_fd(self._writing.fileno(), warn_on_full_buffer=False)
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._came)

    def _came(self, number: int, frame: object) -> None:
        self._number = self._number or number
        self._raise_once()

    def _raise_once(self) -> None:
        if self.has_come and not self._is_raised and not self._depth:
            self._is_raised = True
            raise KeyboardInterrupt

    def _watch(self) -> None:
        """In a thread of its own: wait for the first signal. The socket stays open for those that follow."""
        # Python writes a signal's number to the wake-up socket from its C handler, so this thread runs even
        # while the main thread is in C code, where no Python handler is called.
        while (woken := self._waking.recv(1)[0]) not in SIGNALS:
            continue
        self._number = self._number or woken
        threading.Thread(target=self._end_all, name="interruption-end", daemon=True).start()
        time.sleep(self._grace_seconds)
        # The line may block on a full pipe; the end of the process must not wait for that.
        saying = threading.Thread(target=self._say, args=(INTERRUPTED_MESSAGE,), daemon=True)
        saying.start()
        saying.join(0.2)
        self._leave(self.status)

    def _end_all(self) -> None:
        for end in reversed(self._endings):
            with contextlib.suppress(Exception):
                end()
        self._ended.set()


_current = Interruption()


def current() -> Interruption:
    """The one that this process's command has installed, else one that never comes."""
    return _current


@contextlib.contextmanager
def _deferred() -> Iterator[None]:
    """Within the block, Ctrl-C and SIGTERM wait for its end: for programs with handlers of their own."""
    waiting: list[int] = []
    before = {number: signal.signal(number, lambda arrived, _: waiting.append(arrived)) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if waiting:
            raise KeyboardInterrupt


def is_interrupt(error: BaseException) -> bool:
    """Does the error stand for an interrupt: has a signal come, or is a KeyboardInterrupt its cause?"""
    if _current.has_come:
        return True
    visited: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in visited:
        if isinstance(link, KeyboardInterrupt):
            return True
        visited.add(id(link))
        link = link.__cause__ or link.__context__
    return False
