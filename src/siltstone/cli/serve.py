"""``siltstone serve``: the console, the REST API and the metrics of log directories."""

from __future__ import annotations

import getpass
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from siltstone.base import interruption
from siltstone.cli import output
from siltstone.commands.engines import ENGINES

if TYPE_CHECKING:
    from siltstone.commands.served import ServeOptions


CLOSE_SECONDS = 60.0
"""How long the logs may take to be closed after a signal; the next start recovers those that took longer."""


@dataclass(frozen=True, kw_only=True)
class ServeFlags(output.DirFlags):
    """The flags of ``siltstone serve``.

    Parameters
    ----------
    config
        The broker's server.properties; the siltstone.http settings are there, too.
    look
        Take no lock and change nothing: also for the directories of a broker that runs.
    create
        Make a log directory that does not exist, also if log.dirs in --config does not name it.
    listen
        Where to listen, http://ADDRESS:PORT; repeat it for more; default: siltstone.http.listeners. Port 0
        is any free one.
    engine
        The cleaner's engine: auto, spark or process.
    hash_password
        Read a password, print its hash for the file siltstone.http.users, and end.
    """

    config: Path | None = None
    look: bool = False
    create: bool = False
    listen: Sequence[str] = ()
    engine: str = "auto"
    hash_password: bool = False


def serve(
    directories: output.Directories = (),
    /,
    *,
    flags: ServeFlags = ServeFlags(),
) -> int:
    """Serve the console, the REST API and the metrics of log directories, and clean them, until Ctrl-C.

    The directories are locked, recovered and open, as in a broker. --look takes no lock and changes nothing.

    Parameters
    ----------
    directories
        The log directories, also as --dir.
    """
    if flags.hash_password:
        return _print_hash()
    flags = flags.at(directories)
    output.refuse_if(not flags.dir, "no log directory", "pass DIR, or --dir DIR")
    known = ", ".join(ENGINES)
    output.refuse_if(flags.engine not in ENGINES, f"--engine {flags.engine}: is none", f"pass {known}")
    from siltstone.commands.served import ServeOptions, refuse_missing, settings_to_serve

    options = ServeOptions(
        paths=tuple(flags.dir),
        properties=flags.config,
        is_look=flags.look,
        engine=flags.engine,  # type: ignore[arg-type]
        creates=flags.create,
    )
    from siltstone.web.running import checked_listeners

    # Before a directory is locked, or made where it is missing.
    checked_listeners(settings_to_serve(options), flags.listen)
    for path in refuse_missing(options):
        output.note(f"{path}: a new log directory")
    interruption.current().allow(CLOSE_SECONDS)
    try:
        while _serve_until_restart(options, flags.listen):
            output.note("restarting")
    except KeyboardInterrupt:
        return interruption.current().status
    return 0


def _serve_until_restart(options: ServeOptions, listen: Sequence[str]) -> bool:
    """Serve until somebody asks for a restart. Raises KeyboardInterrupt after a signal."""
    from siltstone.commands.served import Served
    from siltstone.web.running import WebServer

    with Served(options) as served:
        server = WebServer(served, listen)
        served.start()
        server.start()
        try:
            for url in server.urls:
                output.write_lines(f"{'looking at' if options.is_look else 'serving'} {url}/ui/")
            sys.stdout.flush()
            return served.restart_asked.wait()
        finally:
            with interruption.current().critical():
                server.stop()
                served.close()


def _print_hash() -> int:
    from siltstone.web.identity import scrypt_hash

    password = getpass.getpass() if sys.stdin.isatty() else sys.stdin.readline().rstrip("\n")
    output.refuse_if(not password, "no password", "type one, or pass it on standard input")
    output.write_lines(scrypt_hash(password))
    return 0
