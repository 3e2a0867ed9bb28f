"""How the console and its REST API do at scale: ``python -m bench.console [--only SECTION …] [--json]``.

::

    pages    every page and list of /ui and /api/v1 over 10,000 topics × 10 partitions: p50, p95, CPU, bytes
    look     siltstone serve --look over the same: the first page, all rows
    list     100,000 topics × 1 partition: the list of topics, the memory of its catalogue
    metrics  /metrics at 20,000 partitions, and at 100,000 with all of them
    live     appends with and without tabs that poll and tails that follow; how long the event loop is blocked
    lock     appends beside threads that only compute: what Python's lock costs, without a server

Each section has a process of its own. Times of requests are the server's: the site is asked in its event
loop, without a socket. ``live`` goes over loopback, its readers in a process of their own
(``bench.readers``). Its windows and those of ``lock`` alternate. ``live`` has two windows without readers in
each round: the ratio of these two (*null*) is what the machine alone makes of a ratio. On a busy machine the
windows need to be many, and to come first (as root ``nice -n -18 python -m bench.console --only live --rounds
20``). Beside each time of the others stands that of the processor, which holds on a busy machine, too.
Directories are made in ``--folder`` and kept there, so that a second run is quicker.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import multiprocessing
import os
import re
import shutil
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from fastapi import FastAPI
from rich.console import Console
from rich.table import Table

from bench.catalogue import make_directory
from bench.partition_log import Figure, append, batch_of, open_log
from bench.readers import POLL_SECONDS, Counts, Readers
from siltstone.base.collector import collect_less_often, leave_out_of_collections
from siltstone.commands import disk_contents, transactions
from siltstone.commands.catalogue import TopicQuery, list_topics
from siltstone.commands.cluster import cluster_identity
from siltstone.commands.explain_page import counted
from siltstone.commands.served import Served, ServeOptions
from siltstone.log.partition import PartitionLog
from siltstone.web.running import SWITCH_SECONDS, WebServer, rules_of
from siltstone.web.site import build_site, routes_with_roles

OUT = Path(__file__).parent / "out" / "console"
TOPICS, PARTITIONS = 10_000, 10
PAGE_MS, PAGE_KB = 100, 150
LEFT_OUT = ("/ui/static", "/ui/theme", "records:tail", "/jobs/", "/openapi")
MORE = (
    "/ui/topics?sort=bytes&descending=true&start=5000",
    "/ui/topics?contains=00&state=up_to_date&policy=compact",
    "/ui/topics?count=500",
    "/ui/cleaner?count=500&sort=waits_for",
    "/ui/cleaner?count=500&contains=topic-9",
    "/ui/directories/0?count=500&sort=topic&contains=topic-9",
    "/api/v1/topics?count=500",
    "/api/v1/cleaner/queue?count=500",
    "/v3/clusters/{cluster}/topics?page_size=50",
)
APPENDS_A_SECOND, APPEND_BYTES = 500, 1000
BEAT_SECONDS, SETTLE_SECONDS = 0.005, 0.7
LOCK_CASES = ((10, 1, 0.5), (10, 1, 0.05), (1, 10, 0.5), (1, 10, 0.05), (1, 20, 0.05), (1, 30, 0.05))
"""Threads, bursts of each in a row, switch interval in ms."""
WAKE_SECONDS, BURST_SECONDS = 0.25, 0.0007
"""How often a tail wakes, and what the records of one event take of Python: both measured."""


@dataclass(slots=True, kw_only=True)
class Answer:
    """One answer: status, bytes of its body, seconds of the server, and of its processors."""

    status: int = 0
    size: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0


@dataclass(slots=True, kw_only=True)
class PageTimes:
    """The answers of one page."""

    path: str
    answers: list[Answer] = field(default_factory=list)

    def percentile_ms(self, percent: float) -> float:
        """Milliseconds of the server."""
        return 1e3 * float(np.percentile([answer.seconds for answer in self.answers], percent))

    @property
    def cpu_ms(self) -> float:
        """Median milliseconds of processors."""
        return 1e3 * statistics.median(answer.cpu_seconds for answer in self.answers)

    @property
    def size(self) -> int:
        """Bytes of the largest answer."""
        return max(answer.size for answer in self.answers)

    def to_json(self) -> dict[str, object]:
        """Numbers for machines."""
        return {
            "path": self.path,
            "status": self.answers[-1].status,
            "p50_ms": round(self.percentile_ms(50), 2),
            "p95_ms": round(self.percentile_ms(95), 2),
            "cpu_ms": round(self.cpu_ms, 2),
            "bytes": self.size,
        }


def directory_of(folder: Path, topics: int, partitions: int) -> Path:
    """A log directory of empty logs, half of the topics compacted; made if it is not there."""
    path = folder / f"{topics}x{partitions}"
    if not (path / ".made").exists():
        shutil.rmtree(path, ignore_errors=True)
        make_directory(path, topics, partitions)
        (path / ".made").touch()
        time.sleep(3)  # what was changed just now would be read at each look
    return path


@contextlib.contextmanager
def looking(path: Path) -> Iterator[Served]:
    """The directory, only looked at, read once."""
    with Served(ServeOptions(paths=(path,), is_look=True)) as served:
        served.cataloguer.refresh()
        assert served.catalogue.error is None, served.catalogue.error
        gc.freeze()  # as the catalogue's thread does after its first look
        yield served


async def ask(site: Any, path: str) -> Answer:
    """One GET of the site, in this event loop."""
    parts, answer = urlsplit(path), Answer()
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": parts.path,
        "raw_path": parts.path.encode(),
        "query_string": parts.query.encode(),
        "root_path": "",
        "headers": [(b"host", b"localhost:8082")],
        "client": ("127.0.0.1", 50000),
        "server": ("127.0.0.1", 8082),
    }
    is_sent = False

    async def receive() -> dict[str, object]:
        nonlocal is_sent
        if is_sent:
            await asyncio.Event().wait()  # a client that stays
        is_sent = True
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        answer.status = message.get("status", answer.status)
        answer.size += len(message.get("body", b""))

    began, cpu = time.perf_counter(), time.process_time()
    await site(scope, receive, send)
    answer.seconds, answer.cpu_seconds = time.perf_counter() - began, time.process_time() - cpu
    return answer


def paths_of(app: FastAPI, topic: str, cluster: str) -> list[str]:
    """Every page and list of the console and of our API, and some with a query."""
    names = {"{partition}": "0", "{offset}": "0", "{number}": "0"}
    values = {"{topic}": topic, "{cluster}": cluster, **names}
    paths = [
        path
        for path, methods, _ in routes_with_roles(app)
        if "GET" in methods
        and path.startswith(("/ui/", "/api/v1/"))
        and not any(map(path.__contains__, LEFT_OUT))
    ]
    filled = []
    for path in (*sorted(paths), *MORE):
        filled.append(re.sub(r"\{[a-z]+\}", lambda name: values[name[0]], path))
    return filled


async def timed_pages(site: Any, paths: Sequence[str], repeat: int) -> list[PageTimes]:
    """Each page in turn, ``repeat`` times; the first answer of each warms up and does not count."""
    times = [PageTimes(path=path) for path in paths]
    for turn in range(repeat + 1):
        for page in times:
            answer = await ask(site, page.path)
            if turn:
                page.answers.append(answer)
    return times


def measure_pages(options: argparse.Namespace) -> dict[str, object]:
    """Every page over a directory that is looked at, or open."""
    path = directory_of(options.folder, options.topics, options.partitions)
    serving = opened(path) if options.open else looking(path)
    with serving as served:
        site = build_site(served, rules_of(served.config, [], is_look=served.is_look))
        topic = served.catalogue.names[options.topics // 2]
        cluster = cluster_identity(served).cluster_id
        paths = paths_of(site._app, topic, cluster)  # type: ignore[attr-defined]
        disk_contents.last_scan(served, 0)
        transactions.last_scan(served)
        began = time.perf_counter()
        served.scans.wait("transactions")  # the later of both: pages show all rows
        scans = time.perf_counter() - began
        times = asyncio.run(timed_pages(site, paths, options.repeat))
    row = Figure(name="scans of the directory and of transactions, before the pages", value=scans, unit="s")
    return {"pages": [page.to_json() for page in times], "figures": {row.name: row.to_json()}}


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Served]:
    """The directory open, with a cleaner that rests; a copy, since an open directory is changed."""
    copy = path.with_name(f"{path.name}-open")
    if not copy.exists():
        shutil.copytree(path, copy)
    with Served(ServeOptions(paths=(copy,), engine="process")) as served:
        served.cataloguer.refresh()
        gc.freeze()
        yield served


def resident_mb() -> float:
    """Megabytes of memory that this process has now."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def clocked(act: Callable[[], object]) -> tuple[float, float]:
    """(Seconds, seconds of processors) that it took."""
    began, cpu = time.perf_counter(), time.process_time()
    act()
    return time.perf_counter() - began, time.process_time() - cpu


def measure_look(options: argparse.Namespace) -> dict[str, object]:
    """From the start of ``serve --look`` to the first page of topics, and to all rows."""
    path = directory_of(options.folder, options.topics, options.partitions)
    before = resident_mb()
    began, cpu = time.perf_counter(), time.process_time()
    with Served(ServeOptions(paths=(path,), is_look=True)) as served:
        served.start()
        while not served.catalogue.topics:
            time.sleep(0.005)
        list_topics(served.catalogue, TopicQuery())
        first = time.perf_counter() - began, time.process_time() - cpu
        while not served.catalogue.is_complete:
            time.sleep(0.05)
        every = time.perf_counter() - began, time.process_time() - cpu
        assert served.catalogue.error is None, served.catalogue.error
        memory = resident_mb() - before
        again = clocked(served.cataloguer.refresh)
        blocked = asyncio.run(longest_wait(served.cataloguer.refresh))
    rows = (
        Figure(name="first page of topics", value=first[0], unit="s", goal="under 2"),
        Figure(name="first page of topics, processor", value=first[1], unit="s"),
        Figure(name="all rows", value=every[0], unit="s", goal="under 10"),
        Figure(name="all rows, processor", value=every[1], unit="s"),
        Figure(name="look again, nothing changed", value=again[0], unit="s"),
        Figure(name="look again, processor", value=again[1], unit="s"),
        Figure(name="event loop, longest wait meanwhile", value=blocked, unit="ms", goal="under 50"),
        Figure(name="memory", value=memory, unit="MB"),
    )
    return {"figures": {row.name: row.to_json() for row in rows}}


def measure_list(options: argparse.Namespace) -> dict[str, object]:
    """The list of 100,000 topics, and what its catalogue takes."""
    path = directory_of(options.folder, 10 * options.topics, 1)
    before = resident_mb()
    with looking(path) as served:
        memory = resident_mb() - before
        site = build_site(served, rules_of(served.config, [], is_look=True))
        paths = [
            "/ui/topics",
            "/ui/topics?contains=00",
            *(
                f"/ui/topics?sort={sort}&descending=true&start={5 * options.topics}"
                for sort in ("name", "bytes", "state", "records", "retention_ms")
            ),
            "/api/v1/topics?count=500",
        ]
        times = asyncio.run(timed_pages(site, paths, options.repeat))
    row = Figure(name="catalogue", value=memory, unit="MB", goal="under 300")
    return {"pages": [page.to_json() for page in times], "figures": {row.name: row.to_json()}}


def measure_metrics(options: argparse.Namespace) -> dict[str, object]:
    """``/metrics`` where each partition has series of its own, and where each topic has."""
    times, blocked = list[PageTimes](), dict[str, float]()
    for topics, paths in (
        (options.topics // 5, ["/metrics"]),
        (options.topics, ["/metrics", "/metrics?partitions=all"]),
    ):
        directory = directory_of(options.folder, topics, options.partitions)
        with opened(directory) if options.open else looking(directory) as served:
            site = build_site(served, rules_of(served.config, [], is_look=served.is_look))
            sys.setswitchinterval(SWITCH_SECONDS)

            async def watched(site: Any = site, paths: list[str] = paths) -> list[PageTimes]:
                beat = Heartbeat()
                task = asyncio.create_task(beat.run())
                page_times = await timed_pages(site, paths, min(options.repeat, 5))
                task.cancel()
                blocked[f"{topics * options.partitions} partitions"] = 1e3 * max(beat.late)  # noqa: B023
                return page_times

            for page in asyncio.run(watched()):
                page.path = f"{page.path} of {topics * options.partitions:,} partitions"
                times.append(page)
    figures = {
        f"event loop, longest wait while /metrics of {what}": Figure(
            name=what, value=value, unit="ms", goal="under 50"
        ).to_json()
        for what, value in blocked.items()
    }
    return {"pages": [page.to_json() for page in times], "figures": figures}


# Appends beside tabs and tails.


class Heartbeat:
    """A task that would wake every ``BEAT_SECONDS``: by how much it is late shows how long the loop was
    blocked."""

    def __init__(self) -> None:
        self.late: list[float] = []

    async def run(self) -> None:
        """Beat until it is cancelled."""
        while True:
            began = time.perf_counter()
            await asyncio.sleep(BEAT_SECONDS)
            self.late.append(time.perf_counter() - began - BEAT_SECONDS)


async def longest_wait(act: Callable[[], object]) -> float:
    """Milliseconds that the event loop waited at most while a thread did something."""
    sys.setswitchinterval(SWITCH_SECONDS)
    beat = Heartbeat()
    task = asyncio.create_task(beat.run())
    await asyncio.to_thread(act)
    await asyncio.sleep(2 * BEAT_SECONDS)
    task.cancel()
    return 1e3 * max(beat.late)


class _Beating:
    """An ASGI application around the site, in whose event loop a heartbeat can run."""

    def __init__(self, site: Any) -> None:
        self._site = site
        self._loop: asyncio.AbstractEventLoop | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self._loop = self._loop or asyncio.get_running_loop()
        await self._site(scope, receive, send)

    def waits(self, act: Callable[[], object]) -> list[float]:
        """Seconds that the loop was late at each beat meanwhile. (In the appends' windows no heart beats.)"""
        beat = Heartbeat()
        assert self._loop is not None
        task = asyncio.run_coroutine_threadsafe(beat.run(), self._loop)
        act()
        task.cancel()
        return beat.late


_Windows = tuple[list[float], list[float]]
"""Seconds of each append of two windows: a ratio is that of the second to the first."""


def append_for(served: Served, seconds: float) -> list[float]:
    """Seconds that each append to the topic took, at a pace."""
    return append_to(served.opened()["load", 0], seconds)


def append_to(log: PartitionLog, seconds: float) -> list[float]:
    """Seconds that each append to a log took, at a pace."""
    batch, took = batch_of(APPEND_BYTES), list[float]()
    due = began = time.perf_counter()
    while due < began + seconds:
        time.sleep(max(due - time.perf_counter(), 0))
        start = time.perf_counter()
        append(log, batch)
        took.append(time.perf_counter() - start)
        due += 1 / APPENDS_A_SECOND
    return took


def measure_live(options: argparse.Namespace) -> dict[str, object]:
    """Appends in windows that alternate, without readers, with them and without them; then how long the
    event loop waits."""
    folder = options.folder / "live"
    shutil.rmtree(folder, ignore_errors=True)
    pairs, nulls, got = list[_Windows](), list[_Windows](), list[Counts]()
    with Served(ServeOptions(paths=(folder,), engine="process", creates=True)) as served:
        served.opened().topics.create("load", 1, {"cleanup.policy": "compact"})
        for number in range(100):
            served.opened().topics.create(f"other-{number}", 1, {"cleanup.policy": "compact"})
        server = WebServer(served, ["http://127.0.0.1:0"])
        beating = _Beating(server._server.config.app)
        server._server.config.app = beating
        served.start()
        server.start()
        readers = Readers(server.urls[0], options.tabs, options.tails)
        collect_less_often()
        _window(served, readers, options.seconds)
        leave_out_of_collections()  # both as ``siltstone serve`` does
        for _ in range(options.rounds):
            alone = _quiet_window(served, options.seconds)
            busy, counts = _window(served, readers, options.seconds)
            again = _quiet_window(served, options.seconds)
            pairs += [(alone, busy), (again, busy)]
            nulls.append((alone, again))
            got.append(counts)
        waits = {"alone": beating.waits(lambda: append_for(served, POLL_SECONDS))}
        waits["loaded"] = beating.waits(lambda: _window(served, readers, POLL_SECONDS))
        readers.close()
        began = time.perf_counter()
        server.stop()
        stopped = time.perf_counter() - began
    shutil.rmtree(folder, ignore_errors=True)
    totals = {name: sum(counts[name] for counts in got) for name in got[0]}
    share = {name: value / totals["seconds"] for name, value in totals.items() if name != "seconds"}
    return {"figures": _live_figures(pairs, nulls, waits, stopped), "clients by second": share}


def _quiet_window(served: Served, seconds: float) -> list[float]:
    """Appends without readers, once what these have left behind is over."""
    append_for(served, SETTLE_SECONDS)
    return append_for(served, seconds)


def _window(served: Served, readers: Readers, seconds: float) -> tuple[list[float], Counts]:
    """Appends beside the readers, once these have begun, and what the readers got."""
    readers.start()
    append_for(served, SETTLE_SECONDS)
    took = append_for(served, seconds)
    return took, readers.stop()


def _ratio_rows(what: str, pairs: Sequence[_Windows], goal: str, second: str = "loaded") -> Iterator[Figure]:
    """Of the windows of a pair, median of the ratios of their percentiles, and between which values half of
    these ratios are; milliseconds are those of all windows together."""
    for percent in (50, 99, 99.9):
        at = [
            (float(np.percentile(alone, percent)), float(np.percentile(busy, percent)))
            for alone, busy in pairs
        ]
        ratios = [busy / alone for alone, busy in at]
        low, high = np.percentile(ratios, [25, 75])
        together = (np.concatenate(windows) for windows in zip(*pairs, strict=True))
        alone, busy = (1e3 * float(np.percentile(windows, percent)) for windows in together)
        if second == "loaded":
            yield Figure(name=f"{what}, p{percent:g}, alone", value=alone, unit="ms")
        yield Figure(
            name=f"{what}, p{percent:g}, {second} (half of the ratios: {low:.2f} to {high:.2f})",
            value=busy,
            unit="ms",
            ratio=statistics.median(ratios),
            goal=goal if percent == 99 else "",
        )


def _live_figures(
    pairs: Sequence[_Windows],
    nulls: Sequence[_Windows],
    waits: dict[str, list[float]],
    stopped: float,
) -> dict[str, object]:
    rows = list(_ratio_rows(f"append of {APPEND_BYTES} B", pairs, "at most 1.05"))
    rows += _ratio_rows(f"append of {APPEND_BYTES} B", nulls, "", "null: without readers, twice")
    for name, late in waits.items():
        p99 = 1e3 * float(np.percentile(late, 99))
        goal = "under 50" if name != "alone" else ""
        rows.append(Figure(name=f"event loop, p99 of its waits, {name}", value=p99, unit="ms"))
        rows.append(
            Figure(name=f"event loop, longest wait, {name}", value=1e3 * max(late), unit="ms", goal=goal)
        )
    rows.append(Figure(name="stop of the server", value=stopped, unit="s"))
    return {row.name: row.to_json() for row in rows}


# What Python's lock alone costs an append.


def _bursts(threads: int, count: int, is_on: threading.Event, is_done: threading.Event) -> None:
    """What a tail does when it wakes, as Python alone: ``BURST_SECONDS`` of it, ``count`` times in a row; in
    all threads at once, every ``WAKE_SECONDS``."""
    while not is_done.is_set():
        is_on.wait(WAKE_SECONDS)
        time.sleep(WAKE_SECONDS - time.time() % WAKE_SECONDS)
        for _ in range(count if is_on.is_set() else 0):
            until = time.thread_time() + BURST_SECONDS
            while time.thread_time() < until:
                sum(range(20))


def measure_lock(options: argparse.Namespace) -> dict[str, object]:
    """Appends beside threads that only compute in Python: the work of ten tails in ten threads that wake at
    once, in one, and twice and thrice as much in one. No server, no sockets, no reads."""
    folder = options.folder / "lock"
    shutil.rmtree(folder, ignore_errors=True)
    log, rows = open_log(folder / "load-0"), list[Figure]()
    for threads, count, milliseconds in LOCK_CASES:
        sys.setswitchinterval(milliseconds / 1e3)
        is_on, is_done, pairs = threading.Event(), threading.Event(), []
        arguments = (threads, count, is_on, is_done)
        workers = [threading.Thread(target=_bursts, args=arguments) for _ in range(threads)]
        for worker in workers:
            worker.start()
        for _ in range(options.rounds):
            is_on.clear()
            append_to(log, SETTLE_SECONDS)
            alone = append_to(log, options.seconds)
            is_on.set()
            append_to(log, SETTLE_SECONDS)
            pairs.append((alone, append_to(log, options.seconds)))
        is_done.set()
        for worker in workers:
            worker.join()
        share = threads * count * BURST_SECONDS / WAKE_SECONDS
        busy = f"{counted(threads, 'thread')}, {share:.1%} of the time"
        what = f"append beside {busy}, switch interval {milliseconds:g} ms"
        rows += _ratio_rows(what, pairs, "")
    shutil.rmtree(folder, ignore_errors=True)
    return {"figures": {row.name: row.to_json() for row in rows}}


# The command.

SECTIONS: dict[str, Callable[[argparse.Namespace], dict[str, object]]] = {
    "pages": measure_pages,
    "look": measure_look,
    "list": measure_list,
    "metrics": measure_metrics,
    "live": measure_live,
    "lock": measure_lock,
}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.console", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--only", action="append", choices=SECTIONS, help="these sections (all)")
    parser.add_argument("--folder", type=Path, default=OUT, help="where the directories are made")
    parser.add_argument("--topics", type=int, default=TOPICS, help=f"topics ({TOPICS})")
    parser.add_argument(
        "--partitions", type=int, default=PARTITIONS, help=f"partitions of each ({PARTITIONS})"
    )
    parser.add_argument("--open", action="store_true", help="open the directory, instead of looking at it")
    parser.add_argument("--repeat", type=int, default=20, help="times that each page is asked (20)")
    parser.add_argument("--tabs", type=int, default=50, help="tabs that poll (50)")
    parser.add_argument("--tails", type=int, default=10, help="tails that follow (10)")
    parser.add_argument("--rounds", type=int, default=4, help="live, lock: pairs of windows (4)")
    parser.add_argument("--seconds", type=float, default=2, help="live, lock: seconds of a window (2)")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    return parser.parse_args()


def _show(console: Console, section: str, results: dict[str, Any]) -> None:
    if "pages" in results:
        table = Table(title=section, title_justify="left", header_style="bold")
        for name in ("page", "status", "p50 ms", "p95 ms", "processor ms", "kB", ""):
            table.add_column(name, justify="left" if name == "page" else "right")
        for page in results["pages"]:
            is_over = page["p95_ms"] >= PAGE_MS or page["bytes"] >= 1000 * PAGE_KB
            cells = (page["status"], page["p50_ms"], page["p95_ms"], page["cpu_ms"], page["bytes"] / 1000)
            texts = (str(cells[0]), *(f"{cell:,.1f}" for cell in cells[1:]))
            table.add_row(page["path"], *texts, "over" if is_over else "")
        console.print(table)
    for name, figure in results.get("figures", {}).items():
        ratio = "" if figure["ratio"] is None else f", {figure['ratio']:.2f} times"
        goal = f" (goal: {figure['goal']})" if figure["goal"] else ""
        console.print(f"{section}: {name}: {figure['value']:,.2f} {figure['unit']}{ratio}{goal}")


def main() -> int:
    """Measure the sections, each in a process of its own."""
    options = _arguments()
    options.folder.mkdir(parents=True, exist_ok=True)
    document: dict[str, Any] = {"load_average": os.getloadavg(), "cores": os.cpu_count()}
    console = Console(width=140)
    for section in options.only or SECTIONS:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=context) as pool:
            document[section] = pool.submit(SECTIONS[section], options).result()
        if not options.json:
            _show(console, section, document[section])
    if options.json:
        print(json.dumps(document))
    else:
        console.print(f"load average before: {document['load_average'][0]:.1f} on {document['cores']} cores")
    return 0


if __name__ == "__main__":
    sys.exit(main())
