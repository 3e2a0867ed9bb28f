"""Ctrl-C and SIGTERM in a command: the work is broken off, and the process is gone within five seconds.

::

    signal ─┬─► main thread: KeyboardInterrupt, once, where it is or behind the critical section that it is in
            └─► a thread that the signal itself wakes, whatever the main thread is busy with
                  ├─ at once: what runs elsewhere (Java, and the workers that hang on it) is ended
                  └─ after ``GRACE_SECONDS``: os._exit(128 + signal)

Breaking off anywhere is safe, as after ``kill -9``; what the grace is for is clearing away what is staged.
PySpark and numba may swallow a KeyboardInterrupt or put another error in its place: who begins something asks
``check`` first, and who meets an error asks ``has_come`` before it is taken for one. A second signal changes
nothing.

Only commands install one. Everywhere else ``current`` is one that never comes, and no handler is touched but
within ``critical``, in the main thread.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator

GRACE_SECONDS = 4.0
"""From the signal to the hard end; a second is left for the system to take the process down."""
SETTLE_SECONDS = 2.5
"""Cleaning up waits so long for what runs elsewhere to end."""
SIGNALS = (signal.SIGINT, signal.SIGTERM)
Critical = Callable[[], contextlib.AbstractContextManager[object]]
"""Guards a block that an interrupt should not tear apart: ``Interruption.critical``, or no guard at all."""
SAID = "interrupted; every log is whole, run the command again to go on"


class Interruption:
    """Whether a signal has come, and what is to be done then.

    ``leave`` ends the process at once, with a status; ``say`` is called before with a line for people.
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
        self._is_installed = self._is_told = False
        self._depth = 0
        self._endings: list[Callable[[], object]] = []
        self._ended, self._uninstalled = threading.Event(), threading.Event()

    @property
    def has_come(self) -> bool:
        """Did a signal come?"""
        return self._number is not None

    @property
    def status(self) -> int:
        """The exit status that shells know: 130 after SIGINT, 143 after SIGTERM."""
        return 128 + (self._number or signal.SIGINT)

    def check(self) -> None:
        """Nothing new is begun after a signal: raises KeyboardInterrupt then."""
        if self.has_come:
            raise KeyboardInterrupt

    def at_once(self, end: Callable[[], object]) -> None:
        """Call ``end`` as soon as a signal comes, in another thread; now, if one has come."""
        self._endings.append(end)
        if self.has_come:
            end()

    def settle(self) -> None:
        """Wait until what runs elsewhere has ended, for a while; at once where no signal has come."""
        if self.has_come and self._is_installed:
            self._ended.wait(SETTLE_SECONDS)

    @contextlib.contextmanager
    def critical(self) -> Iterator[None]:
        """Within the block, in the main thread, a signal's KeyboardInterrupt waits for the end of it.

        A block that begins after the signal, to clean up, begins when what runs elsewhere has ended.
        """
        self.settle()
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
                self._tell()

    def install(self) -> None:
        """Take the signals over and become ``current``; in the main thread. One that is ignored, as with
        ``nohup`` or in the background of a script, stays so."""
        global _current
        self._before = {number: signal.getsignal(number) for number in SIGNALS}
        self._waking, writing = socket.socketpair()
        writing.setblocking(False)
        self._writing = writing
        self._is_installed, _current = True, self
        threading.Thread(target=self._watch, name="interruption", daemon=True).start()
        self._wakeup_before = signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
        for number, handler in self._before.items():
            if handler is not signal.SIG_IGN:
                signal.signal(number, self._came)

    def uninstall(self) -> None:
        """Put back what was there."""
        global _current
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup_before)
        self._is_installed, _current = False, _QUIET
        self._uninstalled.set()
        self._writing.close()

    def _came(self, number: int, frame: object) -> None:
        self._number = self._number or number
        self._tell()

    def _tell(self) -> None:
        if self.has_come and not self._is_told and not self._depth:
            self._is_told = True
            raise KeyboardInterrupt

    def _watch(self) -> None:
        """In a thread of its own: wait for the first signal. The socket stays open for those that follow."""
        while woken := self._waking.recv(1):
            if woken[0] in SIGNALS:
                break
        else:
            self._waking.close()
            return
        self._number = self._number or woken[0]
        threading.Thread(target=self._end_all, name="interruption-end", daemon=True).start()
        if self._uninstalled.wait(self._grace_seconds):
            return
        # What is said may have to wait for who reads it; the end does not.
        saying = threading.Thread(target=self._say, args=(SAID,), daemon=True)
        saying.start()
        saying.join(0.2)
        self._leave(self.status)

    def _end_all(self) -> None:
        for end in reversed(self._endings):
            with contextlib.suppress(Exception):
                end()
        self._ended.set()


_QUIET = Interruption()
_current = _QUIET


def current() -> Interruption:
    """The process's: the one that its command has installed, else one that never comes."""
    return _current


@contextlib.contextmanager
def _deferred() -> Iterator[None]:
    """Within the block, Ctrl-C and SIGTERM wait for its end; for programs that have handlers of their own."""
    waiting: list[int] = []
    before = {number: signal.signal(number, lambda got, _: waiting.append(got)) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if waiting:
            raise KeyboardInterrupt


def came_of_interrupt(error: BaseException) -> bool:
    """Was a KeyboardInterrupt replaced by this error, or has a signal come?"""
    if _current.has_come:
        return True
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        if isinstance(link, KeyboardInterrupt):
            return True
        seen.add(id(link))
        link = link.__cause__ or link.__context__
    return False
