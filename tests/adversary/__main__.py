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
from tests.adversary.drawing import every_one, flips, random_cases
from tests.adversary.judging import FAILED, Case
from tests.adversary.room import Found, run_room, say
from tests.support.in_memory import FOLDER

HOUR = 3600


def main() -> int:
    """Run; the exit status is 1 when a case failed."""
    asked = _arguments()
    store = Path(tempfile.mkdtemp(prefix="siltstone-adversary-", dir=FOLDER))
    kept = Path(asked.keep)
    shutil.rmtree(kept, ignore_errors=True)
    try:
        if asked.case:
            cases = [Case.of(text) for text in asked.case.split()]
            found = run_room(cases, store, seconds=HOUR, workers=1, keep=kept, tell=say)
            say(", ".join(f"{name}: {count}" for name, count in found.outcomes.items()))
        else:
            found = _run(asked, store, kept)
    finally:
        with contextlib.suppress(OSError):
            shutil.rmtree(store)
    return 1 if found.outcomes[FAILED] else 0


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


def _run(asked: argparse.Namespace, store: Path, kept: Path) -> Found:
    say(f"seed {asked.seed}, {asked.seconds:.0f} s, {asked.workers} workers")
    bases = Bases(store / "names")
    (store / "names").mkdir()
    names = bases.names()
    golden = [name for name in names if name.startswith(("golden/", "txn/")) and name.endswith("/0")]
    single = flips(asked.seed, bases, golden)
    left_out, only = set(asked.without.split(",")), set(filter(None, asked.only.split(",")))
    drawn = (
        case
        for case in random_cases(asked.seed, names, slow=not asked.no_slow)
        if not left_out & {*case.attacks, *case.commands}
        and (not only or only & {*case.attacks, *case.commands})
    )
    cases = drawn if only else every_one(drawn, single, 1)
    found = run_room(cases, store, seconds=asked.seconds, workers=asked.workers, keep=kept, tell=say)
    done = sum(count for (kind, _), count in found.table.items() if kind.startswith("every bit"))
    say(found.text())
    say(f"one flip: {done} of {len(single)} bits; seed {asked.seed}")
    if found.failures:
        say(f"{found.outcomes[FAILED]} cases failed; their directories are in {kept}")
    return found


sys.exit(main()) if __name__ == "__main__" else None
