"""The keeper: a process beside the program that starts the program's brokers, and ends them with the program.

::

    program ──► keeper, has imported the package ──fork──► broker 1 ◄── calls of the program
        │          │                             ──fork──► broker 2 ◄── calls of the program
        └── ends, even by SIGKILL: the keeper kills the brokers and removes their temporary directories
                   └── ends, even by SIGKILL: the kernel kills the brokers, even paused ones (Linux)

There is one keeper for a program, from its first broker on, or from the moment when it first refers to
``siltstone.testing.BrokerProcess`` (``fork_ahead``). A program with a single thread forks the keeper, which
takes some milliseconds; others start a new Python, which imports everything once. In both cases brokers are
forked from a process with a single Python thread, so no lock is copied while another thread holds it
(``spark.daemon`` has the same rule).

The end of its channel tells the keeper that the program has ended, but only when all copies of the socket are
closed, and a process that the program has forked may have one. So the keeper watches a ``pidfd`` of the
program, too, where the system has them.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import logging
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import warnings
import weakref
from collections.abc import Iterable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from siltstone.base import files
from siltstone.base.clock import ManualClock, SystemClock
from siltstone.base.decoded_types import decoded_in_threads
from siltstone.broker.calls import CalledMethod, Channel, answer_calls
from siltstone.broker.embedded import EmbeddedBroker
from siltstone.broker.store import load_kernels

_PR_SET_PDEATHSIG = 1
"""The option of Linux's ``prctl`` that sets the signal which a process gets when its parent ends."""
_END_SECONDS = 10
"""How long a program that ends waits for a keeper that is a new Python, which kills the brokers meanwhile."""


@decoded_in_threads
class BrokerStart(msgspec.Struct, frozen=True, kw_only=True):
    """A broker to start. ``port``: 0 is any free one; ``time_ms``: where its clock stands, None: it has the
    machine's clock; ``is_temporary``: the keeper removes the directory's parent if the program ends and has
    not removed it."""

    directory: str
    config: dict[str, str]
    port: int
    time_ms: int | None
    is_temporary: bool


@decoded_in_threads
class StartedBroker(msgspec.Struct, frozen=True, kw_only=True):
    """What a broker answers when it has begun to listen. ``address``: ``HOST:PORT``."""

    pid: int
    address: str


# The program's side


class Keeper:
    """The program's side of its keeper. ``owner``: the program's process id, by which a process that was
    forked from the program, and has a copy of this object, knows that the keeper is not its own. ``start``
    and ``signal`` raise EOFError if the keeper has ended."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self.owner = os.getpid()
        self._process: subprocess.Popen[bytes] | None = None
        with theirs, contextlib.ExitStack() as stack:
            program = os.pidfd_open(self.owner) if hasattr(os, "pidfd_open") else -1
            if program >= 0:
                stack.enter_context(files.closing(program))
            # A fork copies locks, but not the threads that would release them.
            if _has_one_thread():
                self._pid = _forked(theirs.fileno(), program, ours)
            else:
                self._process = _spawned(theirs.fileno(), program)
        self._channel = Channel(ours)
        close_in_forks(self._channel)
        atexit.register(self.end)

    @property
    def is_alive(self) -> bool:
        """Does the keeper still answer? False in a process that was forked from the program."""
        if self.owner != os.getpid():
            return False
        try:
            return bool(self._answer_to("ping", {}))
        except EOFError:
            return False

    def start(self, broker: BrokerStart) -> tuple[Channel, StartedBroker]:
        """Start a broker; returns the channel for calls to it. Raises what ``EmbeddedBroker`` raises,
        EOFError if its process ends before it listens."""
        ours, theirs = socket.socketpair()
        channel = Channel(ours)
        close_in_forks(channel)
        try:
            self._answer_to("start", msgspec.structs.asdict(broker), theirs)
            return channel, channel.call(StartedBroker, "started")
        except BaseException:
            channel.close()
            raise

    def signal(self, pid: int, number: int, *, waits_for_end: bool) -> bool:
        """Send the signal ``number`` to a broker, none if it is 0; ``waits_for_end``: then wait until the
        broker has ended. Returns False if it had ended before."""
        return bool(self._answer_to("signal", {"pid": pid, "number": number, "waits_for_end": waits_for_end}))

    def _answer_to(self, method: str, arguments: dict[str, Any], end: socket.socket | None = None) -> object:
        """Call the keeper. ``end``: a socket that the keeper receives, and that is closed here.

        A Ctrl-C interrupts the main thread, which therefore leaves the call to a thread that is not
        interrupted: after half a call the channel could only be closed, and all brokers would end with it.
        """
        answer = Future[object]()

        def call() -> None:
            with end or contextlib.nullcontext():
                try:
                    descriptors = [] if end is None else [end.fileno()]
                    answer.set_result(
                        msgspec.msgpack.decode(self._channel.ask(method, arguments, descriptors))
                    )
                except BaseException as error:
                    answer.set_exception(error)

        if threading.current_thread() is threading.main_thread():
            thread = threading.Thread(target=call, name="siltstone-keeper-call", daemon=True)
            thread.start()
            thread.join()
        else:
            call()
        return answer.result()

    def end(self) -> None:
        """End the keeper, and all brokers with it. Does nothing in a process that was forked from the
        program."""
        atexit.unregister(self.end)
        if self.owner != os.getpid():
            return
        with contextlib.suppress(OSError):
            self._channel.socket.shutdown(socket.SHUT_RDWR)  # also for a call that was interrupted
        self._channel.close()
        with contextlib.suppress(ChildProcessError, subprocess.TimeoutExpired):
            if self._process is None:
                os.waitpid(self._pid, 0)
            else:
                self._process.wait(_END_SECONDS)


_lock = threading.Lock()
_keepers: list[Keeper] = []  # empty, or the keeper of this process
_channels: weakref.WeakSet[Channel] = weakref.WeakSet()


def keeper() -> Keeper:
    """The keeper of this process, which is started if there is none. Any thread may call this."""
    with _lock:
        if not _keepers or not _keepers[0].is_alive:
            if _keepers:
                _keepers.pop().end()
            _keepers.append(Keeper())
        return _keepers[0]


def fork_ahead() -> None:
    """Fork the keeper now if this process has a single thread: once it has more, its first broker would have
    to wait for a new Python."""
    if _has_one_thread():
        keeper()


def _has_one_thread() -> bool:
    return len(sys._current_frames()) == 1


def close_in_forks(channel: Channel) -> None:
    """Close a channel in every process that is forked from this one: two processes that used it would take
    each other's responses."""
    _channels.add(channel)


def _after_fork() -> None:
    global _lock  # noqa: PLW0603 - another thread may have held the copied one
    _lock = threading.Lock()
    for channel in list(_channels):
        channel.close()
    _channels.clear()
    _keepers.clear()


os.register_at_fork(after_in_child=_after_fork)


def _forked(channel: int, program: int, ours: socket.socket) -> int:
    """Fork the keeper from this process; returns its process id. ``channel``, ``program``: the descriptors
    for ``keep``; ``ours``: the program's end of the channel, which the keeper must not hold open."""
    with warnings.catch_warnings():
        # Python warns if libraries, such as numpy, have threads of their own; these hold no lock of Python's.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        ours.close()
        _leave_the_program((channel, program))
        keep(channel, program)
        status = 0
    finally:
        os._exit(status)  # no ``finally`` or atexit function of the program may run here


def _leave_the_program(kept: Iterable[int]) -> None:
    """In a fork: give up what was the program's: its files, streams, handlers and garbage. ``kept``: the
    descriptors that stay open, beside standard error."""
    gc.freeze()  # garbage of the program, if collected here, might close descriptors or remove directories
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    files.discard_descriptors({*kept, 2})
    sys.stdin, sys.stdout, sys.stderr = sys.__stdin__, sys.__stdout__, sys.__stderr__
    logging.basicConfig(force=True, level=logging.WARNING)
    logging.disable(logging.NOTSET)


def _spawned(channel: int, program: int) -> subprocess.Popen[bytes]:
    """Start the keeper as a new Python. ``channel``, ``program``: the descriptors for ``keep``."""
    kept = [descriptor for descriptor in (channel, program) if descriptor >= 0]
    return subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, str(channel), str(program)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=kept,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )


_PROGRAM = """
import gc, sys
gc.disable()  # imports make many objects, and hardly any garbage
from siltstone.broker.keeper import keep
gc.freeze()
gc.enable()
keep(int(sys.argv[1]), int(sys.argv[2]))
"""

# The keeper's side


class _Brokers:
    """The brokers, which are the keeper's children, by process id, and their temporary directories, which are
    removed at the end if the program has not removed them."""

    def __init__(self) -> None:
        self.children: set[int] = set()
        self.temporary: set[str] = set()

    def reap(self, pid: int, *, waits: bool = False) -> bool:
        """Has a broker ended? ``waits``: wait until it has. After ``waitpid`` the system may give its process
        id to another process, so the id is forgotten then, and gets no signal."""
        if pid in self.children and os.waitpid(pid, 0 if waits else os.WNOHANG)[0]:
            self.children.discard(pid)
        return pid not in self.children

    def signal(self, pid: int, number: int, *, waits_for_end: bool) -> bool:
        """See ``Keeper.signal``."""
        if self.reap(pid):
            return False
        if number:
            os.kill(pid, number)
        if waits_for_end:
            self.reap(pid, waits=True)
        return True

    def end(self) -> None:
        """Kill all brokers, and remove their temporary directories."""
        for pid in list(self.children):
            self.signal(pid, signal.SIGKILL, waits_for_end=True)
        for directory in filter(files.exists, self.temporary):
            with contextlib.suppress(OSError):
                files.remove_tree(directory)


def keep(channel_descriptor: int, program: int) -> None:
    """Be the keeper, until the program has ended or has closed the channel. ``program``: its pidfd, -1 if the
    system has none."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the program's
    channel = Channel(socket.socket(fileno=channel_descriptor))
    brokers = _Brokers()
    has_kernels = False
    with selectors.DefaultSelector() as selector, contextlib.suppress(EOFError):
        selector.register(channel.socket, selectors.EVENT_READ)
        if program >= 0:
            selector.register(program, selectors.EVENT_READ)
        while True:
            loads_next = not has_kernels and bool(brokers.children)
            ready = {key.fd for key, _ in selector.select(0 if loads_next else None)}
            if program in ready:
                break
            if ready:
                _answer(channel, brokers)
            elif loads_next:
                # After the first broker's start, which need not wait for it; later brokers are forked with
                # the kernels.
                load_kernels()
                has_kernels = True
    brokers.end()


def _answer(channel: Channel, brokers: _Brokers) -> None:
    """Answer one call of the program: ``start``, ``signal`` or ``ping``."""
    descriptors: list[int] = []
    called = channel.receive(CalledMethod, descriptors)
    if called.method == "start":
        start = msgspec.convert(called.arguments, BrokerStart)
        with socket.socket(fileno=descriptors[0]) as end:
            keeper_pid = os.getpid()
            pid = os.fork()
            if not pid:
                channel.close()
                _be_a_broker(Channel(end), start, keeper_pid)
        brokers.children.add(pid)
        if start.is_temporary:
            brokers.temporary.add(str(Path(start.directory).parent))
        channel.answer()
    elif called.method == "signal":
        channel.answer(brokers.signal(**called.arguments))
    else:
        channel.answer(True)


def _be_a_broker(channel: Channel, start: BrokerStart, keeper_pid: int) -> NoReturn:
    """Be a broker, in a child of the keeper, until the program calls ``close`` or ends. Then the process
    ends."""
    status = 1
    try:
        _die_with(keeper_pid)
        channel.receive(CalledMethod)  # ``started``, of ``Keeper.start``: it is answered below
        clock = SystemClock() if start.time_ms is None else ManualClock(start.time_ms)
        try:
            broker = EmbeddedBroker(Path(start.directory), config=start.config, clock=clock, port=start.port)
        except Exception as error:  # it is raised in the program
            channel.refuse(error)
        else:
            channel.answer(StartedBroker(pid=os.getpid(), address=broker.address))
            answer_calls(broker, channel)
        status = 0
    finally:
        os._exit(status)


def _die_with(parent: int) -> None:
    """Let the kernel kill this process when its parent ends, where it can (Linux). ``parent``: the process id
    of the parent."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent ended before ``prctl``
        os._exit(1)
