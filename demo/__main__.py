"""Cleans the log directories of a real Kafka broker and shows what was removed and why: `make demo`.

demo/data/broker.tar.xz holds the two log directories of a single-node Kafka 4.3 broker, cleanly stopped. They
are unpacked below demo/out and cleaned as a user would: first with --dry-run, which changes nothing, then in
place. topics.config has the topics' own settings; the clock is set to the moment after the broker stopped, so
that every run has the same result.
"""

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from demo.archive import unpack

ROOT = Path(__file__).resolve().parent
OUT = ROOT / "out"
TOPICS_CONFIG = ROOT / "topics.config"

# The broker wrote its last records at …720 s and its own cleaner looked at them from …724 s on.
NOW_MS = 1_795_230_724_700


def configured_topics(config_file: Path) -> list[str]:
    """The topics that the config file names, in its order, each once."""
    lines = config_file.read_text(encoding="utf-8").splitlines()
    return list(dict.fromkeys(line.partition(":")[0] for line in lines if line.strip()))


def clean_command(log_dirs: list[Path], topics: list[str], extra: list[str]) -> list[str]:
    """The command line a user would type, started with the interpreter's own `siltstone`."""
    command = [str(Path(sys.executable).parent / "siltstone"), "clean", *map(str, log_dirs), "--in-place"]
    for topic in topics:
        command += ["--topic", topic]
    return [*command, "--config-file", str(TOPICS_CONFIG), "--now-ms", str(NOW_MS), *extra]


def run(title: str, command: list[str]) -> int:
    """Print a command, run it, and return its exit status."""
    print(f"\n{title}\n\n  $ {shlex.join(command)}\n", flush=True)
    return subprocess.run(command, check=False).returncode


def main() -> int:
    """Unpack, show the plan, clean; the exit status is the first that is not 0."""
    shutil.rmtree(OUT, ignore_errors=True)
    unpack(ROOT / "data" / "broker.tar.xz", OUT)
    log_dirs = [OUT / "data0", OUT / "data1"]
    topics = configured_topics(TOPICS_CONFIG)
    planned = run("The plan (nothing is changed):", clean_command(log_dirs, topics, ["--dry-run"]))
    if planned != 0:
        return planned
    cleaned = run("Cleaning in place:", clean_command(log_dirs, topics, []))
    print(f"\nThe cleaned log directories are in {OUT}; a Kafka 4.3 broker starts on them.", flush=True)
    return cleaned


if __name__ == "__main__":
    sys.exit(main())
