"""What is run on an attacked directory, one command a function, by name in ``COMMANDS``.

Nearly all of them are command lines, run in this process as ``siltstone.cli.main.run`` runs them; standard
output is as strict about what it can encode as a terminal's. Each says what it did to which logs, so that
``judging`` can hold the directory to it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import resource
import signal
import subprocess
import sys
import traceback
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest

import siltstone
from siltstone.base import files
from siltstone.base.clock import ManualClock
from siltstone.base.config import Config, parse_assignments
from siltstone.base.errors import SiltstoneError
from siltstone.base.files import Operation
from siltstone.cli import clean as cli_clean
from siltstone.cli import main
from siltstone.cli import review as cli_review
from siltstone.compaction.engine import InProcessEngine
from siltstone.log.partition import run_now
from siltstone.runtime.log_cleaner import LogCleaner
from siltstone.runtime.manager import LogManager
from siltstone.runtime.producing import NewRecord, batch_of
from siltstone.tables.options import ReadOptions
from siltstone.tables.table import plan, read_split
from tests.adversary.scene import Scene, topic_of

CLEANS, COPIES, RECOVERS, OPENS, LOOKS, COMPACTS = (
    "cleans",
    "copies",
    "recovers",
    "opens",
    "looks",
    "compacts",
)
LATER_MS = 30_000
YEAR_9000_MS = 221_845_392_000_000


@dataclass(slots=True, kw_only=True)
class Execution:
    """What a command did: ``kind`` says what it may do to logs. ``results``: of logs, by their directories.

    ``description``: the command in a few words. ``error``: a traceback that must not be. ``rows``: what was
    read, by log. ``contract``: what is wrong with the answer itself. ``drop_keyless``, ``to_the_end``: the
    command's flags.
    """

    kind: str
    description: str
    status: int | None = None
    results: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    reported: bool = False
    error: str | None = None
    stderr: str = ""
    drop_keyless: bool = False
    to_the_end: bool = False
    out: Path | None = None
    rows: Mapping[str, list[dict[str, Any]]] = field(default_factory=dict)
    contract: list[str] = field(default_factory=list)
    interrupted: bool = False


Command = Callable[[Random, Scene], Execution]
COMMANDS: dict[str, Command] = {}


def command(function: Command) -> Command:
    """Register a command under its function's name."""
    COMMANDS[function.__name__] = function
    return function


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An exit status, what was printed, and the traceback of what was raised."""

    status: int | None
    output: str
    stderr: str
    error: str | None = None


def call(arguments: Sequence[str]) -> Answer:
    """Run a command line here; where it is one of ``clean`` or ``explain``, mostly without cyclopts, which
    would take two thirds of the time. Names that are no text are escaped, as ``main`` sees to."""
    printed = io.BytesIO()
    output, errors = io.TextIOWrapper(printed, "utf-8", errors="backslashreplace", newline=""), io.StringIO()
    status, error = None, None
    parsed = arguments[0] not in _PARSED or zlib.crc32(repr(arguments).encode()) % 16 == 0
    with (
        contextlib.redirect_stdout(output),
        contextlib.redirect_stderr(errors),
        pytest.MonkeyPatch.context() as patch,
    ):
        try:
            if not parsed:
                patch.setattr(main, "_run", _run_quickly)
            status = main.run(list(arguments))
            output.flush()
        except (Exception, SystemExit):
            error = traceback.format_exc()
    with contextlib.suppress(ValueError):
        output.flush()
    return Answer(status=status, output=printed.getvalue().decode(), stderr=errors.getvalue(), error=error)


_PARSED = {
    "clean": (cli_clean.clean, cli_clean.CleanFlags),
    "explain": (cli_review.explain, cli_review.ExplainFlags),
}

_JSON: dict[str, dict[str, Any]] = {
    "clean": {"output_flags": cli_clean.OutputFlags(json=True)},
    "explain": {"json_": True},
}


def _run_quickly(arguments: list[str]) -> int:
    """What ``main._run`` does with a command line that is known to be right."""
    function, flags_of = _PARSED[arguments[0]]
    kinds = {flag.name: str(flag.type) for flag in dataclasses.fields(flags_of)}
    flags: dict[str, Any] = {}
    more: dict[str, Any] = {}
    places: list[Path] = []
    words = iter(arguments[1:])
    for word in words:
        name, equals, value = word.partition("=")
        field_name = name.removeprefix("--").replace("-", "_").replace("topic", "topics")
        if not word.startswith("--"):
            places.append(Path(word))
        elif word == "--json":
            more |= _JSON[arguments[0]]
        elif word == "--all-topics":
            more["all_topics"] = True
        elif field_name == "html":
            more["html"] = Path(value if equals else next(words))
        elif "bool" in kinds[field_name]:
            flags[field_name] = True
        else:
            text = value if equals else next(words)
            if field_name in ("topics", "config"):
                flags[field_name] = (*flags.get(field_name, ()), text)
            else:
                convert = Path if "Path" in kinds[field_name] else int if "int" in kinds[field_name] else str
                flags[field_name] = convert(text)
    return function(places, flags=flags_of(**flags), **more)


def call_apart(arguments: Sequence[str], **environment: str) -> Answer:
    """Run ``python -m siltstone`` in a process of its own, with the source tree that these tests import."""
    source = str(Path(siltstone.__file__).parents[1])
    variables = {**os.environ, "PYTHONPATH": source, **environment}
    completed = subprocess.run(
        [sys.executable, "-m", "siltstone", *arguments],
        capture_output=True,
        env=variables,
        timeout=240,
        check=False,
        preexec_fn=_lift_memory_limit,
    )
    errors = completed.stderr.decode("utf-8", "replace")
    assert "No module named" not in errors, errors
    error = errors if "Traceback (most recent call last)" in errors else None
    return Answer(
        status=completed.returncode,
        output=completed.stdout.decode("utf-8", "replace"),
        stderr=errors,
        error=error,
    )


def _lift_memory_limit() -> None:
    """Java reserves more than it uses (``room`` limits the address space)."""
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (hard, hard))


def _settings(scene: Scene) -> list[str]:
    arguments = []
    if scene.base.from_metadata:
        arguments.append("--policy-from-metadata")
    else:
        arguments += [part for topic in scene.base.topics for part in ("--topic", topic)]
        arguments += [f"--config={key}={value}" for key, value in scene.config.items()]
    if scene.broker_config:
        path = scene.root / "server.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in scene.broker_config.items()))
        arguments += ["--broker-config", str(path)]
    return arguments


def _flags(draw: Random, scene: Scene) -> tuple[list[str], bool, bool]:
    """Flags of ``clean``; whether keyless records may go, and whether the end is committed."""
    keyless, to_the_end = draw.random() < 0.5, draw.random() < 0.4
    arguments = [f"--now-ms={scene.now_ms}", *_settings(scene)]
    arguments += ["--force"] if draw.random() < 0.8 else []
    arguments += ["--drop-keyless"] if keyless else []
    arguments += ["--high-watermark", "end"] if to_the_end else []
    return arguments, keyless or scene.base.from_metadata, to_the_end


def _directories(scene: Scene) -> list[str]:
    return [str(path) for path in scene.directories]


def _document(answer: Answer) -> dict[str, Any] | None:
    try:
        document = json.loads(answer.output)
    except ValueError:
        return None
    return document if isinstance(document, dict) else None


def _cleaned(answer: Answer, description: str, **more: Any) -> Execution:
    """What ``clean --json`` answered."""
    document = _document(answer)
    logs = document["logs"] if document else []
    execution = Execution(
        kind=CLEANS,
        description=description,
        status=answer.status,
        results={log["directory"]: log for log in logs},
        reported=document is not None,
        error=answer.error,
        stderr=answer.stderr,
    )
    for name, value in more.items():
        setattr(execution, name, value)
    if document is not None:
        bad = any(log["status"] in ("failed", "uncleanable") for log in logs)
        if answer.status != int(bad):
            execution.contract.append(f"exit status {answer.status} with {[log['status'] for log in logs]}")
        for log in logs:
            if log["status"] != "cleaned" and not log["reason"]:
                execution.contract.append(f"{log['directory']}: {log['status']} without a reason")
    elif answer.error is None:
        execution.contract += _refusal(answer)
    return execution


def _refusal(answer: Answer) -> list[str]:
    """A command that gives no document ends with 1 or 2 and says why in a line."""
    problems = []
    if answer.status not in (1, 2):
        problems.append(f"exit status {answer.status} without a word")
    if not answer.stderr.strip():
        problems.append("nothing on standard error")
    return problems


@command
def clean(draw: Random, scene: Scene) -> Execution:
    """In place, in this process."""
    flags, keyless, to_the_end = _flags(draw, scene)
    if draw.random() < 0.2:
        flags += ["--max-extra-bytes", str(draw.choice([1, 1000, 20_000, 1 << 20]))]
    answer = call(
        ["clean", *_directories(scene), "--in-place", "--all-topics", "--no-spark", "--json", *flags]
    )
    return _cleaned(answer, "clean", drop_keyless=keyless, to_the_end=to_the_end)


@command
def clean_one(draw: Random, scene: Scene) -> Execution:
    """One partition by its own path, links included; its neighbours are nobody's business."""
    flags, keyless, to_the_end = _flags(draw, scene)
    names = [path for directory in scene.directories for path in sorted(directory.iterdir())]
    names = [path for path in names if topic_of(path) in scene.base.topics] or scene.partitions()
    if not names:
        return Execution(kind=LOOKS, description="nothing there")
    partition = str(draw.choice(names))
    answer = call(["clean", partition, "--in-place", "--all-topics", "--no-spark", "--json", *flags])
    return _cleaned(answer, f"clean {partition}", drop_keyless=keyless, to_the_end=to_the_end)


@command
def clean_report(draw: Random, scene: Scene) -> Execution:
    """With an audit."""
    flags, keyless, to_the_end = _flags(draw, scene)
    report = ["--report", str(scene.root / f"audit-{draw.randrange(10**6)}.json")]
    answer = call(
        ["clean", *_directories(scene), "--in-place", "--all-topics", "--no-spark", "--json", *flags, *report]
    )
    return _cleaned(answer, "clean --report", drop_keyless=keyless, to_the_end=to_the_end)


@command
def clean_out(draw: Random, scene: Scene) -> Execution:
    """Into a copy; the source stays as it is."""
    flags, keyless, to_the_end = _flags(draw, scene)
    source = draw.choice(_directories(scene))
    out = scene.root / f"out-{draw.randrange(10**6)}"
    answer = call(["clean", source, "--out", str(out), "--no-spark", "--json", *flags])
    execution = _cleaned(answer, "clean --out", drop_keyless=keyless, to_the_end=to_the_end, out=out)
    execution.kind = COPIES
    return execution


@command
def clean_undo(draw: Random, scene: Scene) -> Execution:
    """Keep the originals, and put them back."""
    flags, keyless, to_the_end = _flags(draw, scene)
    originals = scene.root / "kept"
    keep = ["--keep-originals", str(originals)]
    first = call(
        ["clean", *_directories(scene), "--in-place", "--all-topics", "--no-spark", "--json", *flags, *keep]
    )
    execution = _cleaned(first, "clean, undo", drop_keyless=keyless, to_the_end=to_the_end)
    originals = (_document(first) or {}).get("kept_originals")
    if originals and execution.error is None:
        answer = call(["undo", originals, "--json"])
        execution.error = answer.error
        if answer.status not in (0, 1):
            execution.contract.append(f"undo: exit status {answer.status}")
        if answer.status == 0:
            execution.kind = "undone"
    return execution


@command
def clean_apart(draw: Random, scene: Scene) -> Execution:
    """A process of its own, under a locale that knows nothing but ASCII."""
    flags, keyless, to_the_end = _flags(draw, scene)
    arguments = ["clean", *_directories(scene), "--in-place", "--all-topics", "--no-spark", "--json", *flags]
    answer = call_apart(arguments, LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    return _cleaned(answer, "clean, ASCII", drop_keyless=keyless, to_the_end=to_the_end)


@command
def clean_on_spark(draw: Random, scene: Scene) -> Execution:
    """As people run it."""
    flags, keyless, to_the_end = _flags(draw, scene)
    arguments = [
        "clean",
        *_directories(scene),
        "--in-place",
        "--all-topics",
        "--json",
        "--master",
        "local[2]",
        *flags,
    ]
    answer = call_apart(arguments)
    return _cleaned(answer, "clean on Spark", drop_keyless=keyless, to_the_end=to_the_end)


@command
def clean_killed(draw: Random, scene: Scene) -> Execution:
    """Killed before one of its file operations, and run again."""
    flags, keyless, to_the_end = _flags(draw, scene)
    arguments = ["clean", *_directories(scene), "--in-place", "--all-topics", "--no-spark", "--json", *flags]
    number = draw.choice([1, 2, 3, draw.randint(1, 40), draw.randint(1, 200)])
    child = os.fork()
    if child == 0:
        _die_at(number, arguments)
    os.waitpid(child, 0)
    execution = _cleaned(
        call(arguments), f"clean, killed at {number}", drop_keyless=keyless, to_the_end=to_the_end
    )
    execution.interrupted = True
    return execution


def _die_at(number: int, arguments: Sequence[str]) -> None:
    """In a child: no clean-up of any kind."""
    remaining = [number]

    def count(operation: Operation) -> None:
        remaining[0] -= 1
        if remaining[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    try:
        with files.observe(count):
            call(arguments)
    finally:
        os._exit(0)


@command
def clean_twice_at_once(draw: Random, scene: Scene) -> Execution:
    """While one run stands still in the middle, another one is tried; it is told that the directory is
    taken."""
    flags, keyless, to_the_end = _flags(draw, scene)
    arguments = ["clean", *_directories(scene), "--in-place", "--all-topics", "--no-spark", "--json", *flags]
    number = draw.randint(1, 12)
    reached, go_on = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        _wait_at(number, arguments, reached[1], go_on[0])
    os.close(reached[1])
    stands = os.read(reached[0], 1) == b"x"
    second = call(arguments)
    os.write(go_on[1], b"x")
    os.waitpid(child, 0)
    for descriptor in (reached[0], *go_on):
        os.close(descriptor)
    execution = _cleaned(
        second, f"clean beside a run at {number}", drop_keyless=keyless, to_the_end=to_the_end
    )
    execution.interrupted = True
    if stands and second.status == 0 and any(r["status"] == "cleaned" for r in execution.results.values()):
        execution.contract.append("both runs cleaned at the same time")
    return execution


def _wait_at(number: int, arguments: Sequence[str], reached: int, go_on: int) -> None:
    """In a child: stand still before a file operation, the lock held."""
    remaining = [number]

    def count(operation: Operation) -> None:
        remaining[0] -= 1
        if remaining[0] == 0:
            os.write(reached, b"x")
            os.read(go_on, 1)

    try:
        with files.observe(count):
            call(arguments)
    finally:
        os._exit(0)


# Recovery, and logs that are open


@command
def recover(draw: Random, scene: Scene) -> Execution:
    """As a broker's start and stop would."""
    options = draw.choice([[], ["--check"], ["--no-check"], ["--check"]])
    arguments = ["recover", *_directories(scene), "--json", f"--now-ms={scene.now_ms}", *options]
    answer = call(arguments)
    document = _document(answer)
    logs = document["logs"] if document else []
    paths = {path.name: str(path) for path in scene.partitions()}
    execution = Execution(
        kind=RECOVERS,
        description=" ".join(["recover", *options]),
        status=answer.status,
        reported=document is not None,
        error=answer.error,
        stderr=answer.stderr,
        results={
            paths.get(name, name): log for log in logs for name in [f"{log['topic']}-{log['partition']}"]
        },
    )
    if document is None and answer.error is None:
        execution.contract += _refusal(answer)
    if document is not None:
        offline = any(directory["offline"] for directory in document["directories"])
        bad = offline or any(log["status"] in ("damaged", "refused", "failed") for log in logs)
        if answer.status != int(bad):
            execution.contract.append(f"exit status {answer.status} with {[log['status'] for log in logs]}")
    return execution


@command
def open_and_clean(draw: Random, scene: Scene) -> Execution:
    """A program opens the directories, appends, lets its cleaner work, and closes them."""
    texts = {
        "log.cleanup.policy": "compact",
        "log.retention.ms": "-1",
        "log.cleaner.min.cleanable.ratio": "0",
    }
    texts["log.segment.bytes"] = draw.choice(["300", "5000"])
    config = Config(parse_assignments([f"{key}={text}" for key, text in texts.items()], "test"))
    execution = Execution(
        kind=OPENS, description="open, append, clean, close", drop_keyless=True, to_the_end=True
    )
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors):
        try:
            _use(draw, scene, config)
            execution.status, execution.reported = 0, True
        except (SiltstoneError, OSError) as error:
            execution.status, execution.stderr = 1, str(error)
        except Exception:
            execution.error = traceback.format_exc()
    return execution


def _use(draw: Random, scene: Scene, config: Config) -> None:
    now_ms = min(max(scene.now_ms, 0), YEAR_9000_MS)  # a program's clock, not a flag
    clock = ManualClock(now_ms)
    with LogManager.open(scene.directories, config=config, clock=clock, background=run_now) as manager:
        for command in list(manager):
            log = manager[command]
            for number in range(draw.randint(0, 3)):
                record = NewRecord(key=b"appended %d" % number, value=b"v" * 20, timestamp=now_ms)
                with contextlib.suppress(SiltstoneError):
                    log.append(batch_of([record], "producer", now_ms))
            if draw.random() < 0.5:
                with contextlib.suppress(SiltstoneError):
                    log.roll()
        cleaner = LogCleaner(manager, InProcessEngine)
        for _ in range(3):
            cleaner.clean_once()
        cleaner.close()
        if draw.random() < 0.3:
            manager.tick(now_ms + LATER_MS)


@command
def delete_records(draw: Random, scene: Scene) -> Execution:
    """Move the log starts up."""
    partitions = scene.targets()
    offsets = [
        {"topic": topic_of(path), "partition": int(path.name.rpartition("-")[2]), "offset": offset}
        for path in partitions[:1]
        for offset in [draw.choice([-1, 0, 1, 5, 1 << 40, (1 << 63) - 1])]
    ]
    place = scene.root / "offsets.json"
    place.write_text(json.dumps({"partitions": offsets, "version": 1}))
    directories = [part for path in _directories(scene) for part in ("--dir", path)]
    scene.snapshots_hold = False  # it has no flag for the clock: producers are too old by the real one
    answer = call(["delete-records", *directories, "--offset-json-file", str(place), "--json"])
    execution = Execution(
        kind=OPENS, description=f"delete-records {offsets}", status=answer.status, error=answer.error
    )
    execution.stderr, execution.reported = answer.stderr, _document(answer) is not None
    if not execution.reported and answer.error is None:
        execution.contract += _refusal(answer)
    return execution


@command
def compact_topic(draw: Random, scene: Scene) -> Execution:
    """Beside the originals, which stay as they are."""
    topics = sorted({topic_of(path) for path in scene.targets()}) or ["nothing"]
    directories = [part for path in _directories(scene) for part in ("--dir", path)]
    arguments = ["compact-topic", *directories, "--topic", draw.choice(topics), "--json"]
    arguments += ["--high-watermark", "end"] if draw.random() < 0.5 else []
    arguments += draw.choice([[], [], ["--reset"], ["--dry-run"]])
    answer = call(arguments)
    execution = Execution(
        kind=COMPACTS, description=" ".join(arguments[:1]), status=answer.status, error=answer.error
    )
    execution.stderr, execution.reported = answer.stderr, _document(answer) is not None
    if not execution.reported and answer.error is None:
        execution.contract += _refusal(answer)
    return execution


# What only looks


def _looked(description: str, answer: Answer) -> Execution:
    execution = Execution(
        kind=LOOKS, description=description, status=answer.status, error=answer.error, stderr=answer.stderr
    )
    if answer.status not in (0, 1, 2) and answer.error is None:
        execution.contract.append(f"exit status {answer.status}")
    return execution


@command
def dry_run(draw: Random, scene: Scene) -> Execution:
    """Nothing may change."""
    flags, _, _ = _flags(draw, scene)
    flags += draw.choice([["--in-place", "--all-topics"], []])
    return _looked(
        "dry run", call(["clean", *_directories(scene), "--dry-run", "--no-spark", "--json", *flags])
    )


@command
def explain(draw: Random, scene: Scene) -> Execution:
    """What would be done, and why."""
    flags, _, _ = _flags(draw, scene)
    flags += (
        ["--html", str(scene.root / f"page-{draw.randrange(10**6)}.html")]
        if draw.random() < 0.3
        else ["--json"]
    )
    return _looked("explain", call(["explain", *_directories(scene), "--no-spark", *flags]))


@command
def dump(draw: Random, scene: Scene) -> Execution:
    """Every file of a partition, of any kind that is known."""
    partitions = scene.partitions()
    folder = draw.choice([*partitions, *scene.directories])
    known = (
        ".log",
        ".index",
        ".timeindex",
        ".txnindex",
        ".snapshot",
        "checkpoint",
        ".metadata",
        ".properties",
    )
    names = [str(path) for path in sorted(folder.iterdir()) if path.name.endswith(known)]
    flags = draw.choice([[], ["--print-data-log"], ["--deep-iteration"], ["--verify-index-only"], ["--json"]])
    return _looked("dump", call(["dump", *(names or ["nothing"]), *flags]))


@command
def recover_dry(draw: Random, scene: Scene) -> Execution:
    """What recovery would do."""
    options = draw.choice([[], ["--check"], ["--no-check"]])
    return _looked(
        "recover --dry-run", call(["recover", *_directories(scene), "--json", "--dry-run", *options])
    )


@command
def look_around(draw: Random, scene: Scene) -> Execution:
    """The commands that list."""
    directories = [part for path in _directories(scene) for part in ("--dir", path)]
    which = draw.choice(
        [
            ["topics", *directories, "--describe", "--json"],
            ["log-dirs", *directories, "--describe"],
            [
                "get-offsets",
                *directories,
                "--time",
                draw.choice(["-1", "-2", "-3", "5", str(scene.base.now_ms)]),
            ],
            ["configs", *directories, "--describe", "--entity-type", "topics", "--json"],
        ]
    )
    return _looked(which[0], call(which))


@command
def verify(draw: Random, scene: Scene) -> Execution:
    """Against itself: there is nothing to find, but in what was attacked."""
    folder = draw.choice(_directories(scene))
    return _looked("verify", call(["verify", folder, folder, "--no-spark", "--json", *_settings(scene)]))


@command
def read_table(draw: Random, scene: Scene) -> Execution:
    """The log, or the last value of each key, as a table."""
    view = draw.choice(["log", "latest"])
    execution = Execution(kind=LOOKS, description=f"table of {view}", status=0)
    rows: dict[str, list[dict[str, Any]]] = {}
    options_given = {
        "path": json.dumps(_directories(scene)) if len(scene.directories) > 1 else _directories(scene)[0]
    }
    options_given |= {"view": view, "columns": "topic,partition,offset,key,value"}
    if len(scene.directories) > 1:
        options_given["path"] = draw.choice(_directories(scene))
    try:
        options = ReadOptions.of(options_given)
        for split in plan(options):
            for part in read_split(split, options):
                for row in part.to_pylist():
                    rows.setdefault(f"{row['topic']}-{row['partition']}", []).append(row)
        execution.rows, execution.reported = rows, True
    except (SiltstoneError, OSError) as error:
        execution.status, execution.stderr = 1, str(error)
    except Exception:
        execution.error = traceback.format_exc()
    return execution
