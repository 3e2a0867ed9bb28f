"""``siltstone``: the commands, and how errors become one line and an exit status.

0: done; 1: something was found or failed; 2: wrong usage; 130: interrupted.
"""

from __future__ import annotations

import contextlib
import signal
import sys
from typing import Any, NoReturn

import cyclopts

import siltstone
from siltstone import files
from siltstone.cli.clean import clean
from siltstone.cli.dump import dump
from siltstone.cli.undo import undo
from siltstone.errors import SiltstoneError, UsageError

FOUND, USAGE, INTERRUPTED = 1, 2, 130

app = cyclopts.App(
    name="siltstone",
    help="A Kafka-format log whose log cleaner runs on Spark.",
    version=siltstone.__version__,
    result_action="return_value",
    exit_on_error=False,
    print_error=False,
    help_on_error=False,
    suppress_keyboard_interrupt=False,
)
app.command(clean)
app.command(dump)
app.command(undo)


def say(message: str) -> None:
    """One line on standard error."""
    with contextlib.suppress(BrokenPipeError):
        sys.stderr.write(f"siltstone: {' '.join(message.split())}\n")


def _interrupt(number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt


def run(arguments: list[str] | None = None) -> int:
    """Run one command line; the exit status."""
    try:
        result: Any = app(sys.argv[1:] if arguments is None else arguments)
        return result if isinstance(result, int) else 0
    except UsageError as error:
        say(str(error))
        return USAGE
    except cyclopts.CycloptsError as error:
        say(f"{error} (siltstone --help says more)")
        return USAGE
    except SiltstoneError as error:
        say(str(error))
        return FOUND
    except BrokenPipeError:
        files.silence_output()
        return FOUND
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        say(f"{where}{error.strerror or error}")
        return FOUND
    except ModuleNotFoundError as error:
        say(
            f"{error.name} is not installed; this command needs siltstone[spark] "
            "(pip install 'siltstone[spark]')"
        )
        return FOUND
    except KeyboardInterrupt:
        say("interrupted; every log is whole, run the command again to go on")
        return INTERRUPTED


def main() -> NoReturn:
    """The entry point of the ``siltstone`` script."""
    signal.signal(signal.SIGTERM, _interrupt)
    status = run()
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    sys.exit(status)
