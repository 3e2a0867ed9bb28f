"""``siltstone serve``: Kafka's protocol, the console, the REST API and the metrics of log directories."""

from __future__ import annotations

import contextlib
import getpass
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from siltstone.base import interruption
from siltstone.base.collector import collect_all_again, collect_less_often, leave_out_of_collections
from siltstone.cli import output
from siltstone.commands.engines import ENGINES

if TYPE_CHECKING:
    from siltstone.broker.listeners import BrokerListener
    from siltstone.commands.served import ServeOptions


CLOSE_SECONDS = 60.0
"""How long closing the logs may take after a signal; the next start recovers those that are not closed
then."""


@dataclass(frozen=True, kw_only=True)
class ServeFlags(output.DirFlags):
    """The flags of ``siltstone serve``.

    Parameters
    ----------
    config
        The broker's server.properties; the siltstone.http settings are there, too. Without DIR its log.dirs
        are served.
    look
        Take no lock and change nothing: also for the directories of a broker that runs.
    create
        Make a log directory that does not exist, also if log.dirs in --config does not name it.
    listen
        Where to listen, http://ADDRESS:PORT; repeat it for more; default: siltstone.http.listeners. Port 0
        is any free one.
    kafka_listen
        Where Kafka's clients connect, PLAINTEXT://HOST:PORT; repeat it for more; none: nowhere. Default: the
        setting listeners. Port 0 is any free one.
    engine
        The cleaner's engine: auto, spark or process.
    hash_password
        Read a password, print its hash for the file siltstone.http.users, and end.
    """

    config: Path | None = None
    look: bool = False
    create: bool = False
    listen: Sequence[str] = ()
    kafka_listen: Sequence[str] = ()
    engine: str = "auto"
    hash_password: bool = False


def serve(
    directories: output.Directories = (),
    /,
    *,
    flags: ServeFlags = ServeFlags(),
) -> int:
    """Serve log directories, and clean them, until Ctrl-C: as a broker that Kafka's clients connect to, and
    with a console, a REST API and metrics.

    The directories are locked, recovered and open, as in a broker. --look takes no lock, changes nothing, and
    is no broker.

    Parameters
    ----------
    directories
        The log directories, also as --dir; default: log.dirs in --config.
    """
    if flags.hash_password:
        return _print_hash()
    flags = flags.at(directories)
    _refuse_flags(flags)
    from siltstone.broker.limits import raise_descriptor_limit
    from siltstone.commands.served import ServeOptions, directories_of, ignored_settings, refuse_missing

    paths = tuple(flags.dir) or (directories_of(flags.config) if flags.config else ())
    output.refuse_if(not paths, "no log directory", "pass DIR, or --config with a file that has log.dirs")
    options = ServeOptions(
        paths=paths,
        properties=flags.config,
        is_look=flags.look,
        engine=flags.engine,  # type: ignore[arg-type]
        creates=flags.create,
    )
    _refuse_before_opening(options, flags)
    if not options.is_look:
        output.note(*ignored_settings(options))
    for path in refuse_missing(options):
        output.note(f"{path}: a new log directory")
    interruption.current().allow(CLOSE_SECONDS)
    raise_descriptor_limit()
    collect_less_often()
    try:
        while _serve_until_restart(options, flags):
            output.note("restarting")
    except KeyboardInterrupt:
        return interruption.current().status
    return 0


def _refuse_flags(flags: ServeFlags) -> None:
    """Raises UsageError for an unknown engine, and for a broker's listener in look mode."""
    reason = f"--engine {flags.engine}: there is no such engine"
    output.refuse_if(flags.engine not in ENGINES, reason, f"pass {', '.join(ENGINES)}")
    advice = "leave one of them out: look mode has no broker"
    output.refuse_if(flags.look and bool(flags.kafka_listen), "--look with --kafka-listen", advice)


def _refuse_before_opening(options: ServeOptions, flags: ServeFlags) -> None:
    """Raises UsageError for a listener that is malformed, unsafe or taken, and for users that cannot be read,
    before a directory is locked or created."""
    from siltstone.broker.listeners import refuse_taken

    refuse_taken(_broker_listeners(options, flags))


def _broker_listeners(options: ServeOptions, flags: ServeFlags) -> list[BrokerListener]:
    """The broker's listeners, by the settings that the file has now. Raises UsageError for a listener of the
    broker or of HTTP that is malformed or unsafe, and for users that cannot be read."""
    from siltstone.broker.listeners import listeners_of
    from siltstone.commands.served import settings_to_serve
    from siltstone.web.running import checked_listeners, rules_of

    config = settings_to_serve(options)
    rules_of(config, checked_listeners(config, flags.listen), is_look=options.is_look)
    return [] if options.is_look else listeners_of(config, flags.kafka_listen)


def _serve_until_restart(options: ServeOptions, flags: ServeFlags) -> bool:
    """Serve until a restart is asked for. Raises KeyboardInterrupt after a signal."""
    from siltstone.broker.listeners import listeners_of
    from siltstone.broker.server import BrokerServer
    from siltstone.commands.served import Served
    from siltstone.web.running import WebServer

    with Served(options) as served, contextlib.ExitStack() as stack:
        served.refuse_restart = lambda: _broker_listeners(options, flags)
        web = WebServer(served, flags.listen)
        stack.callback(web.stop)
        listeners = [] if options.is_look else listeners_of(served.config, flags.kafka_listen)
        broker = BrokerServer(served, listeners) if listeners else None
        if broker is not None:
            # Stopped first: the waiting requests of its clients are answered while the logs are open.
            stack.callback(broker.stop)
        try:
            served.start()
            web.start()
            for url in web.urls:
                output.write_lines(f"{'looking at' if options.is_look else 'serving'} {url}/ui/")
            if broker is not None:
                broker.start()
                # By the time the kernels are loaded, most objects are those that stay until the server ends.
                broker.broker.when_loaded(leave_out_of_collections)
                for address in broker.addresses:
                    output.write_lines(f"serving {address.name}://{address.host}:{address.port}")
            sys.stdout.flush()
            return served.restart_asked.wait()
        finally:
            with interruption.current().critical():
                stack.close()
                served.close()
                collect_all_again()


def _print_hash() -> int:
    """Read a password, and print its hash; returns the exit status."""
    from siltstone.web.identity import scrypt_hash

    password = getpass.getpass() if sys.stdin.isatty() else sys.stdin.readline().rstrip("\n")
    output.refuse_if(not password, "no password", "type one, or pass it on standard input")
    output.write_lines(scrypt_hash(password))
    return 0
