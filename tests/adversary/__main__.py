"""``python -m tests.adversary``: what ``make adversary`` runs; the package says what it is."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import sys
import tempfile
from pathlib import Path

from tests.adversary.bases import Bases
from tests.adversary.drawing import flips, interleaved, random_cases
from tests.adversary.judging import FAILED, Case
from tests.adversary.room import Findings, run_room, say
from tests.support.in_memory import FOLDER

HOUR = 3600


def main() -> int:
    """Run; the exit status is 1 when a case failed."""
    arguments = _arguments()
    store = Path(tempfile.mkdtemp(prefix="siltstone-adversary-", dir=FOLDER))
    failures_folder = Path(arguments.keep)
    shutil.rmtree(failures_folder, ignore_errors=True)
    try:
        if arguments.case:
            cases = [Case.of(text) for text in arguments.case.split()]
            findings = run_room(cases, store, seconds=HOUR, workers=1, keep=failures_folder, tell=say)
            say(", ".join(f"{name}: {count}" for name, count in findings.outcomes.items()))
        else:
            findings = _run(arguments, store, failures_folder)
    finally:
        with contextlib.suppress(OSError):
            shutil.rmtree(store)
    return 1 if findings.outcomes[FAILED] else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.adversary", description=__doc__)
    seconds = os.environ.get("SILTSTONE_ADVERSARY_SECONDS", str(HOUR))
    seed = os.environ.get("SILTSTONE_ADVERSARY_SEED") or str(int.from_bytes(os.urandom(4), "big"))
    parser.add_argument("--seconds", type=float, default=float(seconds))
    parser.add_argument("--seed", type=int, default=int(seed))
    parser.add_argument(
        "--case", default=os.environ.get("CASE", ""), help="exactly these, with spaces between"
    )
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 2)
    parser.add_argument("--keep", default="adversary-failures", help="where directories of failed cases go")
    parser.add_argument("--no-slow", action="store_true", help="no case starts Spark or another process")
    parser.add_argument("--only", default="", help="cases that have one of these attacks or commands")
    parser.add_argument(
        "--without", default="", help="attacks and commands to leave out, with commas between"
    )
    return parser.parse_args()


def _run(arguments: argparse.Namespace, store: Path, failures_folder: Path) -> Findings:
    say(f"seed {arguments.seed}, {arguments.seconds:.0f} s, {arguments.workers} workers")
    bases = Bases(store / "names")
    (store / "names").mkdir()
    names = bases.names()
    golden = [name for name in names if name.startswith(("golden/", "txn/")) and name.endswith("/0")]
    single = flips(arguments.seed, bases, golden)
    left_out, only = set(arguments.without.split(",")), set(filter(None, arguments.only.split(",")))
    drawn = (
        case
        for case in random_cases(arguments.seed, names, slow=not arguments.no_slow)
        if not left_out & {*case.attacks, *case.commands}
        and (not only or only & {*case.attacks, *case.commands})
    )
    cases = drawn if only else interleaved(drawn, single, 1)
    findings = run_room(
        cases, store, seconds=arguments.seconds, workers=arguments.workers, keep=failures_folder, tell=say
    )
    flips_done = sum(count for (kind, _), count in findings.table.items() if kind.startswith("every bit"))
    say(findings.text())
    say(f"one flip: {flips_done} of {len(single)} bits; seed {arguments.seed}")
    if findings.failures:
        say(f"{findings.outcomes[FAILED]} cases failed; their directories are in {failures_folder}")
    return findings


sys.exit(main()) if __name__ == "__main__" else None
