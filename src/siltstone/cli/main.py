"""``siltstone``: the commands, and how errors become one line and an exit status.

0: done; 1: a problem was found, or the command failed; 2: wrong usage; 130: interrupted by Ctrl-C; 143: by
SIGTERM.
"""

from __future__ import annotations

import contextlib
import gc
import io
import logging
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from siltstone.base import interruption
from siltstone.base.errors import SiltstoneError, UsageError

if TYPE_CHECKING:
    import cyclopts

PROBLEM, USAGE = 1, 2
"""Exit statuses."""
_EXTRAS = dict.fromkeys("jinja2 markupsafe fastapi starlette uvicorn".split(), "web")
_EXTRAS |= {"confluent_kafka": "live"}
"""The extra that installs a library, by the library's name; those that are not named come with ``spark``."""

COMMANDS = {
    "backup": "Back up log directories to an object store; only what is new is put.",
    "clean": "Clean the compacted topics of stopped Kafka log directories, in this process or on Spark.",
    "compact": "Compact a topic of a running Kafka now, by temporary settings, which are restored.",
    "compact-topic": "Compact a topic side by side, as pulsar compact-topic does.",
    "configs": "Show and change settings of topics, show those of brokers, as kafka-configs does.",
    "consume": "Write the records of a topic, as kcat -C does.",
    "delete-records": "Delete the records below given offsets, as kafka-delete-records does.",
    "dump": "Show what is in files of a Kafka log directory, as kafka-dump-log does, and check them.",
    "empty": "Empty a topic: a tombstone for each key, or the log starts moved to the ends.",
    "erase": "Erase a key from a compacted topic, with receipts that nothing of it is left.",
    "explain": "Show what clean would do with Kafka log directories, and why, in tables or on a page.",
    "get-offsets": "Show offsets of partitions by time, as kafka-get-offsets does.",
    "groups": "Show consumer groups, their members, offsets and lag, as kafka-consumer-groups does.",
    "hand-over": "Write what a real Kafka needs to start on the log directories with all topics.",
    "log-dirs": "Show the partitions of log directories with their sizes, as kafka-log-dirs does.",
    "monitoring": "Write alert rules for Prometheus and a dashboard for Grafana.",
    "produce": "Append records to a topic: lines of standard input, or files, as kcat -P does.",
    "recover": "Recover Kafka log directories after a crash, as a broker's start and stop would.",
    "restore": "Restore log directories from a backup in an object store.",
    "serve": "Serve the console, the REST API and the metrics of log directories, and clean them.",
    "topics": "List, describe, create, alter, delete and compact topics, as kafka-topics does.",
    "undo": "Restore the segments that a run of clean --keep-originals replaced.",
    "verify": "Check a cleaned log directory against what it was before, independently of the cleaner.",
}
"""Each command with its line of help; the module of a command is loaded only when it is used."""
BROKER_FLAG = "--bootstrap-server"
BROKER_COMMANDS = frozenset(
    "compact configs consume delete-records dump empty get-offsets groups log-dirs produce topics "
    "verify".split()
)
"""The commands that take --bootstrap-server, to ask a running broker by Kafka's protocol (``compact`` works
on nothing else). Every command is either here or a key of ``ADVICE_FOR_BOOTSTRAP_SERVER``, which a test
checks."""
_STOPPED = "pass the log directories once the broker has stopped"
ADVICE_FOR_BOOTSTRAP_SERVER = {
    "backup": "pass the log directories, with --live while a broker runs",
    "clean": f"{_STOPPED}; siltstone compact has a running Kafka clean a topic",
    "compact-topic": f"{_STOPPED}; Siltstone's broker compacts from its console or by REST",
    "erase": f"{_STOPPED}, or use the console or REST of Siltstone's broker; siltstone produce -Z sends a "
    "tombstone to a broker, without a receipt",
    "explain": "pass the log directories: they are read without a lock, also while a broker runs",
    "hand-over": _STOPPED,
    "monitoring": "leave the flag out: the rules are written without a request",
    "recover": _STOPPED,
    "restore": "pass the backup and a new directory, and start the broker on it",
    "serve": "name the listener of this broker by --kafka-listen",
    "undo": _STOPPED,
}
"""What the error advises when --bootstrap-server is passed to a command that does not take it."""
_MODULES = (
    dict.fromkeys(("get-offsets", "log-dirs", "delete-records"), "offsets")
    | dict.fromkeys(("explain", "verify"), "review")
    | dict.fromkeys(("consume", "produce"), "records")
    | {"empty": "erase", "restore": "backup"}
    | {"undo": "clean", "compact": "live", "compact-topic": "topics"}
)
"""The module of each command whose module has another name."""


def build_app(command: str = "") -> cyclopts.App:
    """The parser of all commands. ``command`` has the help text of its function, the others one line:
    only the module of the command that runs is loaded, which is most of the time that a start takes.

    The imports are here, and not at the top, so that Ctrl-C while they run prints one line and no traceback.
    """
    import cyclopts

    import siltstone
    from siltstone.cli.output import DEFAULTS

    app = cyclopts.App(
        name="siltstone",
        help="A Kafka-format log whose log cleaner runs on Spark.",
        version=siltstone.__version__,
        result_action="return_value",
        exit_on_error=False,
        print_error=False,
        help_on_error=False,
        suppress_keyboard_interrupt=False,
        default_parameter=DEFAULTS,
    )
    for name, line in COMMANDS.items():
        attribute = name.replace("-", "_")
        module = _MODULES.get(name, attribute)
        app.command(f"siltstone.cli.{module}:{attribute}", name=name, help=None if name == command else line)
    return app


def print_error(message: str) -> None:
    """Print a message as one line on standard error."""
    with contextlib.suppress(BrokenPipeError):
        sys.stderr.write(f"siltstone: {' '.join(message.split())}\n")


def escape_unencodable() -> None:
    """Make both outputs escape characters that their encoding lacks (``\\xff``, ``\\udcff``).

    File names are bytes. Python decodes bytes that are not valid in the locale's encoding into surrogates,
    which cannot be encoded. A command that has changed something must not end in a traceback because of a
    name.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def refuse_bootstrap_server(command: str, arguments: Sequence[str]) -> None:
    """Raises UsageError if ``--bootstrap-server`` is passed to a command that works on files only."""
    has_flag = any(argument.partition("=")[0] == BROKER_FLAG for argument in arguments)
    if has_flag and command in ADVICE_FOR_BOOTSTRAP_SERVER:
        reason = f"{BROKER_FLAG}: {command} works on files, and does not ask a running broker"
        raise UsageError(reason, advice=ADVICE_FOR_BOOTSTRAP_SERVER[command])


def _run(arguments: list[str]) -> int:
    """Run one command line. Raises UsageError for one that cannot be parsed. After a signal any error becomes
    KeyboardInterrupt: the signal may have caused it."""
    app = build_app(arguments[0] if arguments else "")
    from cyclopts import CycloptsError, UnusedCliTokensError

    refuse_bootstrap_server(arguments[0] if arguments else "", arguments[1:])
    try:
        result = app(arguments)
    except CycloptsError as error:
        command = arguments[0] if arguments and arguments[0] in COMMANDS else "COMMAND"
        reason = str(error).rstrip(".")
        if isinstance(error, UnusedCliTokensError):
            unused = " ".join(error.unused_tokens or ())
            # If the shell has split a value of --storage-option, the unused arguments are parts of a secret.
            has_secrets = any(argument.startswith("--storage-option") for argument in arguments)
            reason = "too many arguments" if has_secrets else f"too many arguments: {unused}"
        raise UsageError(reason, advice=f"siltstone {command} --help lists the flags") from None
    except Exception as error:
        if interruption.current().was_signalled:
            raise KeyboardInterrupt from error
        raise
    return result if isinstance(result, int) else 0


def run(arguments: list[str] | None = None) -> int:
    """Run one command line. Returns the exit status."""
    try:
        return _run(sys.argv[1:] if arguments is None else arguments)
    except UsageError as error:
        print_error(str(error))
        return USAGE
    except SiltstoneError as error:
        print_error(f"{error} ({error.code})")
    except BrokenPipeError:
        from siltstone.base import files

        files.discard_standard_output()
    except OSError as error:
        path = f"{error.filename}: " if error.filename else ""
        print_error(f"{path}{error.strerror or error}")
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get((error.name or "").partition(".")[0], "spark")
        needed = f"siltstone[{extra}]"
        print_error(f"{error.name} is not installed; this command needs {needed} (pip install '{needed}')")
    except KeyboardInterrupt:
        print_error(interruption.INTERRUPTED_MESSAGE)
        return interruption.current().status
    return PROBLEM


def _is_worth_logging(record: logging.LogRecord) -> bool:
    """A filter of the root logger: drops the tracebacks that Py4J logs after an interrupt. (Py4J logs them at
    the root logger itself: the filters of a logger do not see the records of the loggers below it.)"""
    if "KeyboardInterrupt while sending command" in str(record.msg):
        return False
    return not (interruption.current().was_signalled and record.exc_info)


def _print_interrupted(line: str) -> None:
    """Print the line that says why the process ends in the middle of its work."""
    if sys.stderr.isatty():  # a progress bar may have hidden the cursor
        sys.stderr.write("\x1b[?25h\n")
    print_error(line)


def main() -> NoReturn:
    """The entry point of the ``siltstone`` script."""
    if None in (sys.stdin, sys.stdout, sys.stderr):  # else the next file that is opened gets the descriptor
        from siltstone.base import files

        files.open_standard_files()
    escape_unencodable()
    interrupt = interruption.InterruptHandler(print_line=_print_interrupted)
    interrupt.install()
    logging.getLogger().addFilter(_is_worth_logging)
    # For processes that fork and inherit this, such as the daemon of Spark's Python workers: a process with
    # OpenBLAS's threads cannot be forked safely, and Siltstone multiplies no matrices.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    status = run()
    try:
        sys.stdout.flush()
    except OSError:
        from siltstone.base import files

        files.discard_standard_output()
    interrupt.wait_for_callbacks()  # after a signal: until Spark's processes, which it ends, have ended
    gc.freeze()  # else the garbage collections at exit would visit all objects of the libraries
    sys.exit(interrupt.status if interrupt.was_signalled else status)
