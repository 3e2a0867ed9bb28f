"""Finds out how many tasks the executors run at the same time, and whether they see the staging folders of
the driver.

The driver does both for each job, since executors come and go on a cluster: an application starts without
any, and with dynamic allocation Spark asks for more while a job waits.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import secrets
import socket
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from siltstone.base import files
from siltstone.spark.internals import is_connect, java_context
from siltstone.spark.settings import is_local
from siltstone.spark.tasks import UNSHARED

_CONNECT_TASKS = 8
"""How many tasks a job on a Connect server has if no setting tells how many can run there at the same
time."""
_WAIT_SECONDS_MAX, _POLL_SECONDS, _SETTLED_POLLS = 30.0, 0.1, 20
"""How long the first job of an application waits for executors; and how many polls in a row must see the same
number of task slots."""


def task_slots(session: SparkSession) -> int:
    """How many tasks can run at the same time; 0 if Spark does not tell.

    The tasks of an exchange wait for each other: more of them than slots would wait for ever. No setting has
    this number: users may set ``spark.default.parallelism`` to anything, and a task may need several cores
    (``spark.task.cpus``).
    """
    try:
        context = java_context(session)
        profile = context.resourceProfileManager().defaultResourceProfile()
        return int(context.maxNumConcurrentTasks(profile))
    except Exception:
        return 0


def tasks_stay_on_this_machine(session: SparkSession) -> bool:
    """Does each task of a job run once, on the driver's machine? With dynamic allocation Spark may add
    executors elsewhere, and with speculation it may start a task twice. Raises Py4J's errors if Spark has
    ended."""
    if is_local(session.sparkContext.master):
        return True
    changing = ("spark.dynamicAllocation.enabled", "spark.speculation")
    if any(_setting(session, name, "false") == "true" for name in changing):
        return False
    hosts = {executor.host() for executor in java_context(session).statusTracker().getExecutorInfos()}
    return all(map(_is_this_machine, hosts))


@functools.cache
def _is_this_machine(host: str) -> bool:
    """Is ``host`` a name or an address of this machine? A socket can be bound to no other address."""
    try:
        *_, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(socket.AF_INET6 if ":" in str(address[0]) else socket.AF_INET) as probe:
            probe.bind(address)
    except OSError:
        return False
    return True


def default_task_count(session: SparkSession) -> int:
    """How many tasks a job should have if no option says so: ``spark.default.parallelism`` if it is set, else
    as many as can run at the same time.

    The first job of an application waits until its executors have started, at most 30 s. With dynamic
    allocation it does not wait: a job gets as many tasks as ``spark.dynamicAllocation.maxExecutors``
    executors can run, but not more than ``spark.sql.shuffle.partitions``. If no executor has started after
    30 s, it gets ``spark.sql.shuffle.partitions``, or as many as ``spark.executor.instances`` can run if that
    is more: a busy cluster may grant executors later.
    """
    if is_connect(session):
        return _default_task_count_of_connect(session)
    context = session.sparkContext
    if is_local(context.master) or _setting(session, "spark.default.parallelism", ""):
        return context.defaultParallelism
    cores, task_cpus = (
        int(_setting(session, name, "1")) for name in ("spark.executor.cores", "spark.task.cpus")
    )
    tasks_per_executor = max(cores // task_cpus, 1)
    partitions = int(_setting(session, "spark.sql.shuffle.partitions", "200"))
    if _setting(session, "spark.dynamicAllocation.enabled", "false") == "true":
        executors_max = _setting(session, "spark.dynamicAllocation.maxExecutors", "")
        has_maximum = executors_max.isdecimal()
        wanted = min(int(executors_max) * tasks_per_executor, partitions) if has_maximum else partitions
        return max(task_slots(session), wanted)
    executors = int(_setting(session, "spark.executor.instances", "0"))
    expected = executors * tasks_per_executor or _slots_of_local_cluster(context.master, task_cpus)
    return _slots_after_start(session, expected) or max(expected, partitions)


def _slots_of_local_cluster(master: str | None, task_cpus: int) -> int:
    """How many tasks of ``task_cpus`` cores the executors of a master ``local-cluster[N,CORES,MIB]`` run at
    the same time; 0 for another master."""
    match = re.fullmatch(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,.*", master or "")
    return int(match[1]) * (int(match[2]) // task_cpus) if match is not None else 0


def _setting(session: SparkSession, name: str, default: str) -> str:
    """A setting of the application. (Asking for all of them takes Py4J a tenth of a second.)"""
    return session.conf.get(name, default) or default


def _default_task_count_of_connect(session: SparkSession) -> int:
    """``default_task_count`` for a Connect session, which knows only settings: from its master, or
    ``spark.default.parallelism``."""
    master = session.conf.get("spark.master", None) or ""
    local = re.fullmatch(r"local(?:-cluster)?(?:\[(\*|\d+)(?:,.*)?\])?", master)
    if local is not None:
        count = local[1] or "1"
        return max(os.cpu_count() or 1, 1) if count == "*" else int(count)
    parallelism = session.conf.get("spark.default.parallelism", None)
    return int(parallelism) if parallelism else _CONNECT_TASKS


_started: set[str] = set()
"""The ids of the applications that have waited for their executors."""


def _slots_after_start(session: SparkSession, expected: int) -> int:
    """``task_slots``, after waiting for executors if this is the first call for the application.

    Waits until ``expected`` tasks can run. If that is 0 (unknown), waits until executors have come and their
    number has not changed for 2 s. Waits 30 s at most.
    """
    slots = task_slots(session)
    if (application := session.sparkContext.applicationId) in _started:
        return slots
    _started.add(application)
    deadline, unchanged_polls = time.monotonic() + _WAIT_SECONDS_MAX, 0
    while time.monotonic() < deadline:
        has_settled = slots > 0 and unchanged_polls >= _SETTLED_POLLS
        if slots >= expected > 0 or (has_settled and not expected):
            break
        time.sleep(_POLL_SECONDS)
        before, slots = slots, task_slots(session)
        unchanged_polls = unchanged_polls + 1 if slots == before else 0
    return slots


# The check of shared folders. The driver writes a file with a nonce (a random number) into the folder that
# the tasks of a job will write to. Each task first reads that file: it must have the same inode, and the task
# the same user. Otherwise the driver could not rename the files that tasks stage, and an executor with an old
# copy of the folder would read other bytes.


class UnsharedFolderError(Exception):
    """In a task: its executor does not see the driver's folder, or works as another user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedFolder:
    """The file with the nonce that the driver wrote for a job, as the driver sees it. Each task must see the
    same."""

    path: str
    nonce: bytes
    inode: int
    user: int

    def check(self) -> None:
        """Called in a task. Raises UnsharedFolderError, which says what this executor sees instead."""
        try:
            seen = (files.read_bytes(self.path), files.stat(self.path).inode, os.geteuid())
        except OSError as error:
            problem = error.strerror or str(error)
        else:
            if seen == (self.nonce, self.inode, self.user):
                return
            problem = "another user" if seen[2] != self.user else "another file of the same name"
        place = f"{Path(self.path).parent} on {socket.gethostname()}"
        raise UnsharedFolderError(f"{UNSHARED}: {place}: {problem}")


@contextlib.contextmanager
def shared_folders(session: SparkSession, folders: Iterable[Path]) -> Iterator[tuple[SharedFolder, ...]]:
    """The checks that each task of a job makes before it writes into ``folders``; none on a local master or a
    Connect server. Raises OSError."""
    if is_connect(session) or is_local(session.sparkContext.master):
        yield ()
        return
    with contextlib.ExitStack() as stack:
        yield tuple(stack.enter_context(_nonce_in(folder)) for folder in folders)


def one_per_log_directory(staging: Iterable[str]) -> list[Path]:
    """One of the ``staging`` folders (``LOG_DIR/PARTITION/…/NAME``) for each log directory: it is enough to
    check one."""
    return list({Path(folder).parents[2]: Path(folder) for folder in staging}.values())


@contextlib.contextmanager
def _nonce_in(folder: Path) -> Iterator[SharedFolder]:
    """Write a nonce into the folder, and remove it after the block."""
    path, nonce = folder / f"{secrets.token_hex(8)}.nonce", secrets.token_bytes(16)
    files.write_new(path, nonce)
    try:
        yield SharedFolder(path=str(path), nonce=nonce, inode=files.stat(path).inode, user=os.geteuid())
    finally:
        # The job's own error is more useful than one of this; the staging folder is removed anyway.
        with contextlib.suppress(OSError):
            files.unlink(path)
