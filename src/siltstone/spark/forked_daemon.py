"""The daemon of Python workers, forked from a command's process while Java starts.

::

    command ─ imports what tasks need ─┬────────────────────► session ─► job
                                       └─ fork: warms up, waits ──┐
    Java, first job ─► python -m siltstone.spark.forked_daemon ───┴─► the fork gets pipes and environment

Only for commands on a local master: ``spark.java`` calls ``fork`` as it starts Java, and the session names
this module as Spark's ``spark.python.daemon.module``.

A daemon that Java starts imports everything again, which takes longer than cleaning a gigabyte, and the
first job would wait for it. The process that Java starts in its place connects to the socket that
``VARIABLE`` names (in a folder of this user, so that no other user connects), passes its arguments,
environment and standard files to the fork, and ends when the fork ends. Without such a socket, or if
anything fails before the fork has taken over, it becomes ``spark.daemon`` itself.

A fork copies locks that other threads hold, and no threads. So there must be no other thread; the one that
waits for signals is stopped during the fork. The fork keeps no open file of the command.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import socket
import struct
import sys
from typing import NoReturn

from siltstone.base import interruption

VARIABLE = "SILTSTONE_DAEMON"
"""Names the socket of the fork, for the process that Java starts."""
DAEMON = "siltstone.spark.daemon"
WORKER = "pyspark.worker"
"""The module of PySpark that runs tasks. For its other worker modules, which plan queries, the fork does not
take over: ``daemon.main`` then runs PySpark's own daemon."""
_STANDARD_FILES = (0, 1, 2)
_SIZE, _TAKEN = struct.Struct(">I"), b"1"
"""The length of the JSON that the fork receives from the process that Java started; and the fork's answer
when it has taken over."""
_kept_open: list[socket.socket] = []
"""The command's end of a socket pair, once this process has forked its daemon. It closes when the process
ends, which the fork sees at the other end."""


def fork(path: str) -> None:
    """Fork the daemon once, with its socket at ``path``. Nothing happens in a program that uses the library
    (only commands install the handler of signals), with other threads, or if an import or the socket
    fails."""
    if _kept_open or not interruption.current().is_installed:
        return
    daemon = importlib.import_module(DAEMON)
    with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
        if not daemon.import_all():
            return
        stack.enter_context(interruption.current().without_thread())
        if daemon.thread_count() != 1:
            return
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(path)
        listener.listen(1)
        ours, theirs = socket.socketpair()
        stack.enter_context(theirs)
        gc.collect()  # a later collection in the fork would close descriptors that are other files by then
        if os.fork() == 0:
            _be_daemon(listener, theirs)
        _kept_open.append(ours)


def _be_daemon(listener: socket.socket, command: socket.socket) -> NoReturn:
    """In the fork: warm up, wait until it may take over, then be the daemon. Until then the fork ends with
    the command, afterwards when Java closes its standard input."""
    status = 1
    try:
        gc.freeze()
        os.setpgid(0, 0)
        interruption.current().uninstall()
        _close_all_but(listener.fileno(), command.fileno())
        daemon = importlib.import_module(DAEMON)
        if daemon.warm_up():
            # Not ``select``, which takes no descriptor from 1024 on: the command may have many files.
            poll = select.poll()
            for waited in (listener, command):
                poll.register(waited, select.POLLIN)
            if command.fileno() not in dict(poll.poll()):  # else the command has ended
                connection, _ = listener.accept()
                for closed in (listener, command):
                    closed.close()
                _take_over(connection)
                daemon.serve()
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    finally:
        os._exit(status)


def _close_all_but(*kept: int) -> None:
    """Close the files of the command, except the standard ones and the descriptors ``kept``."""
    first = len(_STANDARD_FILES)
    for number in sorted(kept):
        os.closerange(first, number)
        first = number + 1
    os.closerange(first, os.sysconf("SC_OPEN_MAX"))


def _take_over(connection: socket.socket) -> None:
    """Take over the arguments, environment, working directory and standard files of the process that Java
    started."""
    size, numbers, _, _ = socket.recv_fds(connection, _SIZE.size, len(_STANDARD_FILES))
    for number, standard in zip(numbers, _STANDARD_FILES, strict=True):
        os.dup2(number, standard)
    _close_all_but(connection.fileno())
    with connection.makefile("rb") as stream:
        program = json.loads(stream.read(*_SIZE.unpack(size)))
    sys.stdin, sys.stdout, sys.stderr = (
        os.fdopen(n, "w" if n else "r", closefd=False) for n in _STANDARD_FILES
    )
    sys.argv[1:] = program["arguments"]
    os.environ.clear()
    os.environ.update(program["environment"])
    os.chdir(program["folder"])
    known = program["environment"].get("PYTHONPATH", "").split(os.pathsep)
    sys.path += [entry for entry in known if entry and entry not in sys.path]
    connection.sendall(_TAKEN)


def _let_fork_take_over(path: str) -> bool:
    """In the process that Java started: let the fork take over, and wait until it ends; False if it has not
    taken over."""
    program = {"arguments": sys.argv[1:], "environment": dict(os.environ), "folder": os.getcwd()}
    data = json.dumps(program).encode()
    taken = b""
    with socket.socket(socket.AF_UNIX) as connection, contextlib.suppress(OSError):
        connection.connect(path)
        socket.send_fds(connection, [_SIZE.pack(len(data))], _STANDARD_FILES)
        connection.sendall(data)
        taken = connection.recv(1)
        connection.recv(1)  # returns when the fork, which keeps the connection open, ends
    return taken == _TAKEN


def main() -> None:
    """Let the fork take over, or become the daemon."""
    path = os.environ.pop(VARIABLE, None)
    if sys.argv[1:] != [WORKER] or path is None or not _let_fork_take_over(path):
        importlib.import_module(DAEMON).main()


if __name__ == "__main__":
    main()
