"""Cleans the log directories of a real Kafka broker and shows what was removed and why: `make demo`.

demo/data/broker.tar.xz holds the two log directories of a single-node Kafka 4.3 broker, cleanly stopped. They
are unpacked below demo/out and cleaned as a user would: first with --dry-run, which changes nothing, then in
place, on Spark. The settings of the topics are those in the broker's own metadata; the clock is set to the
moment after the broker stopped, so that every run has the same result.
"""

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from demo.archive import unpack

ROOT = Path(__file__).resolve().parent
OUT = ROOT / "out"

# The broker wrote its last records at …720 s and its own cleaner looked at them from …724 s on.
NOW_MS = 1_795_230_724_700


def siltstone(*arguments: str) -> list[str]:
    """The command line a user would type, started with the interpreter's own `siltstone`."""
    return [str(Path(sys.executable).parent / "siltstone"), *arguments]


def show(command: list[str]) -> None:
    """Print a command as a user would type it."""
    print(f"\n$ {shlex.join(['siltstone', *command[1:]])}", flush=True)


def main() -> int:
    """Unpack, show the plan, clean; the exit status is the first that is not 0."""
    shutil.rmtree(OUT, ignore_errors=True)
    unpack(ROOT / "data" / "broker.tar.xz", OUT)
    log_dirs = [str((OUT / name).relative_to(ROOT.parent)) for name in ("data0", "data1")]
    plan = siltstone("clean", *log_dirs, "--dry-run", f"--now-ms={NOW_MS}")
    show(plan)
    planned = subprocess.run(plan, check=False).returncode
    if planned != 0:
        return planned
    clean = siltstone(
        "clean", *log_dirs, "--in-place", "--all-topics", "--engine=spark", f"--now-ms={NOW_MS}"
    )
    show(clean)
    completed = subprocess.run(clean, check=False, stdout=subprocess.PIPE, text=True)
    *_, summary = completed.stdout.splitlines() or [""]
    print(f"…\n{summary}\n\nA Kafka 4.3 broker starts on {OUT}.", flush=True)
    return completed.returncode


if __name__ == "__main__":
    sys.exit(main())
