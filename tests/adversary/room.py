"""Many cases, in workers of their own: each has a limit of memory, each case a limit of time."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import multiprocessing
import os
import resource
import shutil
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from tests.adversary.bases import Bases
from tests.adversary.judging import FAILED, OUTCOMES, Case, describe, run_case
from tests.adversary.oracle import Verdict

SECONDS_MAX = 60
APART_SECONDS_MAX = 300
MEMORY_MAX = 3 << 30
KEPT_MAX = 40
STACK_MAX = 10
FAILURES_MAX = 400
CASES_OF_A_PROCESS = 1_000
Spoiler = Callable[[], None]
"""Breaks the product within a worker, for the tests of this room."""


@dataclass(slots=True, kw_only=True)
class Findings:
    """What a run came to. ``table``: (attack, outcome) → cases; ``failures``: their descriptions."""

    cases: int = 0
    seconds: float = 0.0
    outcomes: Counter[str] = field(default_factory=Counter)
    table: Counter[tuple[str, str]] = field(default_factory=Counter)
    bases: Counter[str] = field(default_factory=Counter)
    commands: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    slowest: tuple[float, str] = (0.0, "")

    def add(self, case: Case, verdict: Verdict, seconds: float) -> None:
        """Count a case."""
        self.cases += 1
        self.outcomes[verdict.outcome] += 1
        for name in case.attacks or ("(nothing)",):
            kind = _kind(name)
            self.table[kind, verdict.outcome] += 1
        self.bases[case.base.partition("/")[0]] += 1
        self.commands.update(case.commands)
        self.slowest = max(self.slowest, (seconds, str(case)))
        if verdict.outcome == FAILED and len(self.failures) < FAILURES_MAX:
            self.failures.append(describe(verdict, case))

    def text(self) -> str:
        """The table, and what failed."""
        rows = [f"{'attack':28}" + "".join(f"{name:>24}" for name in OUTCOMES)]
        for kind in sorted({kind for kind, _ in self.table}):
            rows.append(f"{kind:28}" + "".join(f"{self.table[kind, name]:>24}" for name in OUTCOMES))
        rows.append(f"{'cases':28}" + "".join(f"{self.outcomes[name]:>24}" for name in OUTCOMES))
        rows.append("commands: " + ", ".join(f"{name} {n}" for name, n in sorted(self.commands.items())))
        rows.append("bases: " + ", ".join(f"{name} {n}" for name, n in sorted(self.bases.items())))
        rows.append(
            f"{self.cases} cases in {self.seconds:.0f} s; slowest {self.slowest[0]:.1f} s: {self.slowest[1]}"
        )
        return "\n".join(rows)


def _kind(attack: str) -> str:
    if not attack.startswith("flip="):
        return attack
    name = attack.removeprefix("flip=").rpartition(":")[0].rpartition("/")[2]
    return f"every bit: {name.rpartition('.')[2] if name[:1].isdigit() else name}"[:27]


# A worker


def _work(pipe: Connection, store: str, spoil: Spoiler | None) -> None:
    """Take cases until there are none."""
    os.fsync = lambda descriptor: os.fstat(descriptor) and None  # type: ignore[assignment]
    bases, root = Bases(Path(store)), Path(store) / "case"
    if spoil is not None:
        spoil()
    hang = Path(store) / "hang"
    _limit_memory()
    with contextlib.suppress(EOFError), hang.open("w") as stacks:
        while True:
            case = Case.of(pipe.recv())
            stacks.truncate(0)
            faulthandler.dump_traceback_later(_max_seconds(case) - 5, file=stacks)
            began = time.monotonic()
            try:
                verdict = run_case(case, bases, root)
            except Exception:
                verdict = Verdict(outcome=FAILED, problems=[f"the room itself: {traceback.format_exc()}"])
            faulthandler.cancel_dump_traceback_later()
            answer = [verdict.outcome, verdict.problems, verdict.summary, time.monotonic() - began]
            pipe.send(json.dumps(answer))


def _max_seconds(case: Case) -> int:
    apart = {"clean_apart", "clean_on_spark"} & set(case.commands)
    return APART_SECONDS_MAX if apart else SECONDS_MAX


def _limit_memory() -> None:
    """From what is mapped now; on Linux only."""
    with contextlib.suppress(OSError, ValueError):
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * os.sysconf("SC_PAGE_SIZE") + MEMORY_MAX
        # The soft limit only: Java reserves more than it uses, so what starts it lifts the limit again.
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))


class _Worker:
    """A worker's process, seen from outside; ``case`` is what it has now."""

    def __init__(self, store: Path, spoil: Spoiler | None) -> None:
        self._store, self._spoil = store, spoil
        self.case: Case | None = None
        self._start()

    def _start(self) -> None:
        shutil.rmtree(self._store, ignore_errors=True)
        self._store.mkdir(parents=True)
        context = multiprocessing.get_context("spawn")
        self.pipe, workers_end = context.Pipe()
        self._process = context.Process(
            target=_work, args=(workers_end, str(self._store), self._spoil), daemon=True
        )
        self._process.start()
        self._cases = 0
        workers_end.close()

    def give(self, case: Case) -> None:
        """Let it begin."""
        self._cases += 1
        self.case, self._began = case, time.monotonic()
        self.pipe.send(str(case))

    def answer(self) -> tuple[Verdict, float] | None:
        """What came of its case; None while it works. One that is gone, or hangs, is begun anew."""
        assert self.case is not None
        seconds = time.monotonic() - self._began
        try:
            if self.pipe.poll():
                outcome, problems, summary, seconds = json.loads(self.pipe.recv())
                return Verdict(outcome=outcome, problems=problems, summary=summary), seconds
        except (EOFError, OSError):
            self._process.join(5)
            return self._lost(f"the process died: exit code {self._process.exitcode}"), seconds
        if seconds > _max_seconds(self.case):
            return self._lost(f"it hangs: nothing after {seconds:.0f} s"), seconds
        return None

    def _lost(self, why: str) -> Verdict:
        self._process.kill()
        self._process.join()
        with contextlib.suppress(OSError):
            stacks = (self._store / "hang").read_text().splitlines()
            why = "\n".join([why, *stacks[:STACK_MAX]])
        return Verdict(outcome=FAILED, problems=[why])

    def again(self) -> None:
        """A new process, once what the old one left was kept; also in time, as what was unpacked and read of
        all the bases stays in a process and counts against its limit."""
        if self._cases >= CASES_OF_A_PROCESS:
            self._process.kill()
            self._process.join()
        if not self._process.is_alive():
            self._start()

    def keep(self, place: Path, text: str) -> None:
        """Put a failed case's directory aside."""
        folder = self._store / "case"
        if folder.is_dir():
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(place, ignore_errors=True)
            subprocess.run(["cp", "-a", str(folder), str(place)], check=True)  # queues and odd names, too
            (place / "case.txt").write_text(text + "\n")

    def end(self) -> None:
        """No more cases."""
        self.pipe.close()
        self._process.join(20)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        shutil.rmtree(self._store, ignore_errors=True)


def run_room(
    cases: Iterable[Case],
    store: Path,
    *,
    seconds: float,
    workers: int = 2,
    keep: Path | None = None,
    spoil: Spoiler | None = None,
    until: Callable[[str], object] = lambda failure: None,
    tell: Callable[[Any], object] = lambda text: None,
) -> Findings:
    """Run cases for so many seconds, or until there are none. ``keep``: where failed cases' directories
    go; ``until``: a failure that is enough."""
    # An arena of malloc's for each thread that ever ran would count as memory.
    os.environ["MALLOC_ARENA_MAX"] = "2"
    findings, began = Findings(), time.monotonic()
    crew = [_Worker(store / f"worker-{number}", spoil) for number in range(workers)]
    stream: Iterator[Case] = iter(cases)
    try:
        while True:
            late = time.monotonic() - began > seconds or any(map(until, findings.failures))
            for worker in crew:
                case = None if worker.case is not None or late else next(stream, None)
                if case is not None:
                    worker.give(case)
            busy = [worker for worker in crew if worker.case is not None]
            if not busy:
                break
            wait([worker.pipe for worker in busy], timeout=1)
            for worker in busy:
                answer = worker.answer()
                if answer is not None:
                    _settle(findings, worker, answer, keep, tell)
    finally:
        for worker in crew:
            worker.end()
    findings.seconds = time.monotonic() - began
    return findings


def _settle(
    findings: Findings,
    worker: _Worker,
    answer: tuple[Verdict, float],
    keep: Path | None,
    tell: Callable[[Any], object],
) -> None:
    case, (verdict, seconds) = worker.case, answer
    assert case is not None
    worker.case = None
    findings.add(case, verdict, seconds)
    if verdict.outcome == FAILED:
        text = describe(verdict, case)
        if keep is not None and findings.outcomes[FAILED] <= KEPT_MAX:
            place = keep / f"{findings.outcomes[FAILED]:03}"
            worker.keep(place, text)
            text += f"\n  kept in {place}"
        tell(text)
    worker.again()


def say(text: Any) -> None:
    """A line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
