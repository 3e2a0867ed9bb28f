"""Ctrl-C and SIGTERM in a command: the work is interrupted, and the process ends within five seconds. (A
server may take longer: ``InterruptHandler.allow``.)

::

    signal ─┬─► main thread: one KeyboardInterrupt, immediately or at the end of its critical section
            └─► a thread that the signal wakes through a socket, even while the main thread is in C code
                  ├─ immediately: other processes (Spark's JVM and its Python workers) are ended
                  └─ after ``GRACE_SECONDS``: os._exit(128 + signal)

The end of the process damages no log, not even by ``kill -9``: the next run, or the next start of a broker,
completes a swap of segments that was cut off, or removes its files. But until then these files lie there, and
the cleaning's report omits the swap. So swaps, and the removal of files that were written but not swapped in,
are critical sections. One that takes longer than the grace period is cut off.

PySpark and numba may swallow a KeyboardInterrupt or raise another error in its place. So call ``check``
before new work starts, and look at ``was_signalled`` before an error is reported as one. A second signal
changes nothing.

Only commands install an ``InterruptHandler``. In any other program ``current()`` returns one that never sees
a signal, and signal handlers are replaced only within ``critical``, in the main thread.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

GRACE_SECONDS = 4.0
"""Time from the signal to ``os._exit``. It leaves the system one of the five seconds to end the process."""
CALLBACKS_SECONDS = 2.5
"""How long a cleanup waits for the callbacks of ``on_signal``, which end other processes."""
_PRINT_SECONDS = 0.2
"""How long the end of the process waits for its last line to be printed."""
_END_CHECKS = 5000
"""How many times at most ``without_thread`` checks, every 0.1 ms, whether the system's thread has ended."""
SIGNALS = (signal.SIGINT, signal.SIGTERM)
_NO_SIGNAL = 0
"""The byte that, in place of a signal's number, ends the thread which waits for a signal."""
CriticalSection = Callable[[], contextlib.AbstractContextManager[object]]
"""Makes the context of a block that an interrupt must not stop half-way: ``InterruptHandler.critical``, or
``contextlib.nullcontext``."""
INTERRUPTED_MESSAGE = "interrupted; no log is damaged, run the command again to go on"


class InterruptHandler:
    """Knows whether a signal has come, and interrupts and ends the process then.

    ``exit_process`` ends the process with an exit status; before it, ``print_line`` gets a line for the user.
    """

    def __init__(
        self,
        *,
        grace_seconds: float = GRACE_SECONDS,
        exit_process: Callable[[int], object] = os._exit,
        print_line: Callable[[str], object] = lambda line: None,
    ) -> None:
        self._grace_seconds = grace_seconds
        self._exit_process = exit_process
        self._print_line = print_line
        self._signal_number: int | None = None
        self._is_installed = self._has_raised = False
        self._critical_depth = 0
        self._callbacks: list[Callable[[], object]] = []
        self._callbacks_done = threading.Event()

    @property
    def was_signalled(self) -> bool:
        """Did SIGINT or SIGTERM come?"""
        return self._signal_number is not None

    @property
    def status(self) -> int:
        """The exit status that shells know: 130 after SIGINT, 143 after SIGTERM."""
        return 128 + (self._signal_number or signal.SIGINT)

    @property
    def is_installed(self) -> bool:
        """Does it handle this process's signals? True in a command, after ``install``."""
        return self._is_installed

    def allow(self, grace_seconds: float) -> None:
        """Let the process take ``grace_seconds`` to end after a signal: a server has many logs to close."""
        self._grace_seconds = grace_seconds

    def check(self) -> None:
        """Raise KeyboardInterrupt if a signal has come. Call it before new work starts."""
        if self.was_signalled:
            raise KeyboardInterrupt

    def on_signal(self, callback: Callable[[], object]) -> None:
        """Call ``callback`` once: in another thread as soon as a signal comes, or now, in the caller's
        thread, if one has come. An Exception of the callback is suppressed."""
        self._callbacks.append(callback)
        if self.was_signalled:
            self._run_callbacks()

    def wait_for_callbacks(self) -> None:
        """After a signal: wait up to ``CALLBACKS_SECONDS`` until other processes have ended."""
        if self.was_signalled and self._is_installed:
            self._callbacks_done.wait(CALLBACKS_SECONDS)

    @contextlib.contextmanager
    def critical(self) -> Iterator[None]:
        """In the main thread, a signal's KeyboardInterrupt is raised only at the end of the block.

        After a signal only a cleanup may enter (new work calls ``check`` first). It waits until other
        processes have ended before its block begins, since they may still write the files that it removes.
        """
        self.wait_for_callbacks()
        if threading.current_thread() is not threading.main_thread():
            yield
        elif not self._is_installed:
            with _deferred_signals():
                yield
        else:
            self._critical_depth += 1
            try:
                yield
            finally:
                self._critical_depth -= 1
                self._raise_once()

    def install(self) -> None:
        """Handle the signals from now on and become ``current()``. Call it in the main thread. A signal that
        the process ignores, as with ``nohup``, stays ignored."""
        global _current
        self._wakeup_reader, self._wakeup_writer = socket.socketpair()
        self._wakeup_writer.setblocking(False)
        self._is_installed, _current = True, self
        self._start_thread()
        signal.set_wakeup_fd(self._wakeup_writer.fileno(), warn_on_full_buffer=False)
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._handle_signal)

    def _start_thread(self) -> None:
        self._thread = threading.Thread(target=self._wait_for_signal, name="interruption", daemon=True)
        self._thread.start()

    @contextlib.contextmanager
    def without_thread(self) -> Iterator[None]:
        """Within the block, the thread that waits for signals has ended, so that the process can be forked. A
        signal that comes meanwhile is handled at the end of the block. The handler must be installed."""
        self.check()
        number = self._thread.native_id
        try:
            self._wakeup_writer.send(bytes([_NO_SIGNAL]))
            self._thread.join()
            # ``join`` returns when Python's thread has ended; the operating system's ends a moment later.
            for _ in range(_END_CHECKS):
                if number is None or not _is_thread(number):
                    break
                time.sleep(0.0001)
            yield
        finally:  # also if a signal comes during the wait
            self._start_thread()

    def uninstall(self) -> None:
        """In a fork of a command's process: let signals end the fork, which has no thread that waits for
        them."""
        signal.set_wakeup_fd(-1)
        for number in SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        self._is_installed = False

    def _handle_signal(self, number: int, frame: object) -> None:
        self._signal_number = self._signal_number or number
        self._raise_once()

    def _raise_once(self) -> None:
        """After a signal, raise KeyboardInterrupt, once, unless a critical section is running."""
        if self.was_signalled and not self._has_raised and not self._critical_depth:
            self._has_raised = True
            raise KeyboardInterrupt

    def _wait_for_signal(self) -> None:
        """In a thread of its own: wait for the first signal, then end the process. The socket stays open for
        later signals."""
        # Python writes a signal's number to the wake-up socket from its C handler, so this thread runs even
        # while the main thread is in C code, where no Python handler is called.
        while (number := self._wakeup_reader.recv(1)[0]) not in SIGNALS:
            if number == _NO_SIGNAL:
                return
        self._signal_number = self._signal_number or number
        threading.Thread(target=self._end_other_processes, name="interruption-end", daemon=True).start()
        time.sleep(self._grace_seconds)
        # The line may block on a full pipe; the end of the process must not wait for that.
        printer = threading.Thread(target=self._print_line, args=(INTERRUPTED_MESSAGE,), daemon=True)
        printer.start()
        printer.join(_PRINT_SECONDS)
        self._exit_process(self.status)

    def _end_other_processes(self) -> None:
        self._run_callbacks()
        self._callbacks_done.set()

    def _run_callbacks(self) -> None:
        """Run each callback once, the last one first."""
        # Two threads may be here: ``pop`` gives a callback to one of them.
        while self._callbacks:
            with contextlib.suppress(IndexError):
                callback = self._callbacks.pop()
                with contextlib.suppress(Exception):
                    callback()


_current = InterruptHandler()


def current() -> InterruptHandler:
    """The ``InterruptHandler`` that this process's command has installed, else one that never sees a
    signal."""
    return _current


class _Deferring:
    """A signal handler that only records the ``numbers`` of the signals that came."""

    def __init__(self) -> None:
        self.numbers: list[int] = []

    def __call__(self, number: int, frame: object) -> None:
        self.numbers.append(number)


@contextlib.contextmanager
def _deferred_signals() -> Iterator[None]:
    """For programs without an installed ``InterruptHandler``: raise KeyboardInterrupt at the end of the block
    if SIGINT or SIGTERM came in it. The program's own handlers are not called for these signals. A signal
    that the program ignores stays ignored. A handler that was not set by Python stays in place: Python could
    not set it again. A block within another one defers to the end of the outer one.
    """
    deferring = _Deferring()
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    replaced = {number: handler for number, handler in handlers.items() if _is_replaceable(handler)}
    try:
        for number in replaced:
            signal.signal(number, deferring)
        yield
    finally:
        _set_handlers(replaced)
        if deferring.numbers:
            raise KeyboardInterrupt


def _set_handlers(handlers: Mapping[signal.Signals, Any]) -> None:
    """Set the ``handlers`` of all signals. If a signal comes meanwhile, and the handler that was just set for
    it raises, the others are still set before that error is raised again."""
    try:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    except BaseException:
        _set_handlers(handlers)
        raise


def _is_replaceable(handler: object) -> bool:
    """Does Python know the handler, and is it neither SIG_IGN nor that of an outer critical section?"""
    return handler not in (None, signal.SIG_IGN) and not isinstance(handler, _Deferring)


def _is_thread(number: int) -> bool:
    """Is this the operating system's number of a thread that has not ended?"""
    try:
        os.getpriority(os.PRIO_PROCESS, number)
    except OSError:
        return False
    return True


def is_interrupt(error: BaseException) -> bool:
    """Was the error caused by an interrupt: has a signal come, or is a KeyboardInterrupt among its causes?"""
    if _current.was_signalled:
        return True
    visited: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in visited:
        if isinstance(cause, KeyboardInterrupt):
            return True
        visited.add(id(cause))
        cause = cause.__cause__ or cause.__context__
    return False
