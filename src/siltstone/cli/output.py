"""What all commands share: their common flags, and how they print JSON documents, tables, lines, notes and
progress."""

import contextlib
import json
import sys
import textwrap
import time
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self, TextIO, TypeVar

import msgspec
from cyclopts import Parameter, Token
from rich.console import Console, JustifyMethod, RenderableType
from rich.markup import escape
from rich.measure import Measurement
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from siltstone.base import files
from siltstone.base.clock import duration_text
from siltstone.base.errors import UsageError, shown_path
from siltstone.commands.directories import BrokerDirectories
from siltstone.commands.explain_page import size_text
from siltstone.log.tiered.joining import with_remotes

if TYPE_CHECKING:
    from siltstone.commands.remote import RemoteBroker

TABLE_WIDTH = 100
"""The width of a table, in characters, where standard output is no terminal."""
WIDEST = 10_000
"""The width of the widest table, in characters."""
LINE_SECONDS = 60.0
"""The time between two lines of progress where standard error is no terminal."""
_STATUS_STYLES = dict.fromkeys(("cleaned", "would_clean", "recovered", "would_recover"), "green")
_STATUS_STYLES |= {"skipped": "yellow"}
_STATUS_STYLES |= dict.fromkeys(("uncleanable", "failed", "damaged", "refused"), "red")
_CONTROLS_ABOVE_ASCII = {code: f"\\u{code:04x}" for code in range(0x7F, 0xA0)}
"""The control characters that JSON does not escape, and how they are escaped."""
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if code not in b"\t\n"}
"""The control characters that are escaped for a terminal: all but tabs and new lines."""
Group = TypeVar("Group", bound=Hashable)


def plain(value: object) -> Any:
    """For JSON: a dataclass as an object, bytes as base64, a path as text. TypeError for other types."""
    return shown_path(value) if isinstance(value, Path) else msgspec.to_builtins(value)


def write_json(document: object, *, flush: bool = False) -> None:
    """Print a JSON document, or one object of a stream of them, on standard output. ``flush``: at once.

    In ASCII where the output is not UTF-8; a lone surrogate is always written as JSON's escape.
    """
    ascii_only = (sys.stdout.encoding or "").lower().replace("-", "") != "utf8"
    text = json_text(document, ascii_only=ascii_only)
    if shown_path(text) != text:  # such as s3:/BUCKET, which a ``Path`` has of s3://BUCKET
        text = json_text(_shown(json.loads(text)), ascii_only=ascii_only)
    write_lines(text.encode("utf-8", "backslashreplace").decode())
    if flush:
        sys.stdout.flush()


def json_text(document: object, *, ascii_only: bool = False) -> str:
    """A JSON document on one line. All control characters are escaped, so that a terminal obeys none."""
    return json.dumps(document, default=plain, ensure_ascii=ascii_only).translate(_CONTROLS_ABOVE_ASCII)


def _shown(document: Any) -> Any:
    """A JSON document with paths as they are shown."""
    if isinstance(document, dict):
        return {shown_path(name): _shown(value) for name, value in document.items()}
    if isinstance(document, list):
        return list(map(_shown, document))
    return shown_path(document) if isinstance(document, str) else document


def write_lines(*lines: str) -> None:
    """Print lines on standard output."""
    text = shown_path("".join(f"{line}\n" for line in lines))
    sys.stdout.write(fit_for(sys.stdout, text))


def fit_for(stream: TextIO, text: str) -> str:
    """Text for a stream. Where that is a terminal, control characters are escaped: it must not obey what a
    file contains."""
    return text.translate(_CONTROLS) if stream.isatty() else text


def wrapped(line: str) -> list[str]:
    """A line for people, cut into several where it is longer than the terminal is wide, or ``TABLE_WIDTH``.
    No word is broken, so that a path stays in one piece."""
    console = Console()
    width = console.width if console.is_terminal else TABLE_WIDTH
    if len(line) <= width:
        return [line]
    return textwrap.wrap(
        line, width, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
    )


def write_wrapped(*lines: str) -> None:
    """Print lines on standard output, each ``wrapped``."""
    write_lines(*(part for line in lines for part in wrapped(line)))


def note(*lines: str) -> None:
    """Print lines for people on standard error, after everything that was printed before them.

    The result of a command is on standard output: tables, lines about a log, the closing line. Notes are
    about the run: where settings came from, the state of a directory.
    """
    sys.stdout.flush()
    for text in lines:
        line = " ".join(shown_path(text).split())
        sys.stderr.write(f"siltstone: {fit_for(sys.stderr, line)}\n")


def new_table(title: str, names: Sequence[str], rows: Iterable[Sequence[Any]], left: Container[int]) -> Table:
    """A table; columns ``left`` are texts, the others numbers. None is empty; a ``Text`` keeps its style.
    Columns without any text are left out."""
    cells = [[cell if isinstance(cell, Text) else Text(_cell_text(cell)) for cell in row] for row in rows]
    shown = [number for number in range(len(names)) if not cells or any(row[number].plain for row in cells)]
    table = Table(
        title=Text(title) if title else None,
        title_justify="left",
        header_style="bold",
        box=None,
        padding=(0, 2, 0, 0),
    )
    for number in shown:
        justify: JustifyMethod = "left" if number in left else "right"
        table.add_column(names[number], justify=justify, no_wrap=True)
    for row in cells:
        table.add_row(*(row[number] for number in shown))
    return table


def change_text(before: int | None, after: int | None, text: Callable[[int], str] = "{:,}".format) -> str:
    """``9,000 → 5,600``, or only ``9,000`` if it stays so; an unknown number is empty."""
    texts = ["" if number is None else text(number) for number in (before, after)]
    return texts[0] if texts[0] == texts[1] else " → ".join(texts)


def status_text(status: str) -> Text:
    """A status in its colour."""
    return Text(status.replace("_", " "), _STATUS_STYLES.get(status, "dim"))


def write_table(title: str, names: Sequence[str], rows: Iterable[Sequence[Any]], left: int = 1) -> None:
    """``new_table`` on standard output, its first ``left`` columns texts. A table that is wider than the
    terminal is written as it is: no name is folded or cut."""
    if title:
        write_lines(title)
        sys.stdout.flush()
    table, console = new_table("", names, rows, range(left)), Console()
    width = console.width if console.is_terminal else TABLE_WIDTH
    table_width = Measurement.get(console, console.options.update_width(WIDEST), table).maximum
    write_rendered(table, max(width, table_width))


def write_rendered(renderable: RenderableType, width: int) -> None:
    """Print what ``rich`` renders on standard output; without blanks at the ends of lines where that is no
    terminal."""
    console = Console(width=width)
    if console.is_terminal:
        console.print(renderable, crop=False)
        return
    with console.capture() as capture:
        console.print(renderable, crop=False)
    write_lines(*(line.rstrip() for line in capture.get().splitlines()))


@contextlib.contextmanager
def progress_bars() -> Iterator[Callable[[str, int, int], None]]:
    """Gives a function that shows bars on standard error; it shows nothing where that is no terminal. The
    function's arguments: a name, which has a bar of its own, how many of its units are done, and how many
    there are."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    bars: dict[str, TaskID] = {}
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:

        def show(name: str, done: int, total: int) -> None:
            if name not in bars:
                bars[name] = progress.add_task(escape(name), total=total)
            progress.update(bars[name], completed=done, total=total)

        yield show


class RunProgress:
    """Shows how far a long run is on standard error: a line that changes on a terminal, else a line a minute.

    It is called, by several threads, with (log, stage, bytes done, bytes in all), as
    ``compaction.engine.Progress``. With the stage ``done`` the two numbers are logs: those that are done, and
    all.
    """

    def __init__(self, *, quiet: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        self._console, self._clock, self._quiet = Console(stderr=True), clock, quiet
        self._line = self._console.status("", spinner="dots") if self._console.is_terminal else None
        self._logs = ""  # "3/14 logs · "
        # By log: its stage, when that began, and how many bytes were done then.
        self._stages: dict[str, tuple[str, float, int]] = {}
        self._last_line_at = clock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.hide()

    def __call__(self, log: str, stage: str, done: int, total: int) -> None:
        """Show the stage of a log."""
        now = self._clock()
        if stage == "done":
            self._logs = f"{done}/{total} logs · " if total > 1 else ""
            return
        if log not in self._stages or self._stages[log][0] != stage:
            self._stages[log] = (stage, now, done)
        _, began, done_before = self._stages[log]
        self.show(self._logs + stage_text(f"{log} {stage}", done, total, done - done_before, now - began))

    def show(self, line: str) -> None:
        """Show a line instead of the one before; off a terminal at most one a minute."""
        if self._quiet:
            return
        if self._line is not None:
            self._line.update(escape(line))
            self._line.start()
        elif (now := self._clock()) - self._last_line_at >= LINE_SECONDS:
            self._last_line_at = now
            note(line)

    def hide(self) -> None:
        """Take the line off the terminal, before something else is written there."""
        if self._line is not None:
            self._line.stop()


def stage_text(stage: str, done: int, total: int, read: int, seconds: float) -> str:
    """``users-0 rewriting 1.2/5.0 GB · 310 MB/s · 12 s left``, after ``read`` bytes in so many seconds."""
    so_far, whole = size_text(done), size_text(total)
    if so_far.split()[1] == whole.split()[1]:  # one unit is enough where both have the same
        so_far = so_far.split()[0]
    text = f"{stage} {so_far}/{whole}"
    if not read or seconds < 1:
        return text
    speed = read / seconds
    return f"{text} · {size_text(speed)}/s · {duration_text((total - done) / speed)} left"


def grouped(members: Iterable[tuple[Group, object]]) -> dict[Group, list[str]]:
    """The texts of the members of each group, groups in order of their first member."""
    groups: dict[Group, list[str]] = {}
    for group, member in members:
        groups.setdefault(group, []).append(str(member))
    return groups


def reason_lines(reasons: Iterable[tuple[tuple[str, str], object]]) -> Iterable[str]:
    """A line for each ``(state, reason)``: the first four logs with it, and how many more there are."""
    for (state, reason), logs in grouped(reasons).items():
        more = f" and {len(logs) - 4} more" if len(logs) > 4 else ""
        yield f"{state}: {', '.join(logs[:4])}{more}: {reason}"


def _cell_text(value: object) -> str:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else str(value).translate(_CONTROLS)


# Flags that many commands have.


def _default_text(value: object) -> str | None:
    """The default of a flag in the help; None, which hides it, where there is no value."""
    return None if value in (False, (), None) else str(value)


DEFAULTS = Parameter(negative=(), consume_multiple=False, show_default=_default_text)
"""For every flag: there is no --no-FLAG, and each time it is passed it takes one value."""
NUMBER_OR_WORD = Parameter(allow_leading_hyphen=True)
"""For a flag whose value may be a negative number."""
FromArguments = Annotated[Sequence[Path], Parameter(parse=False)]
"""The type of a field of a request that does not become a flag, since the command's arguments set it."""
Directories = tuple[Path, ...]
"""Directories that a command takes as arguments; ``--dir`` does the same."""
DirFlag = Annotated[Sequence[Path], Parameter(name="--dir")]


def _use_stores(_: object, tokens: Sequence[Token]) -> tuple[()]:
    """Hand ``--storage-option`` to the stores as it is parsed, so that no flags, reports or errors have the
    values. Raises UsageError, which names no value."""
    for token in tokens:
        name, equals, value = token.value.partition("=")
        refuse_if(not equals, "--storage-option: it is no NAME=VALUE", "pass NAME=VALUE")
        files.configure({name: value})
    return ()


StorageOptions = Annotated[Sequence[str], Parameter(name="--storage-option", converter=_use_stores)]
"""Options of object stores, NAME=VALUE each. They are in use once they are parsed; the value is empty."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class StoreFlags:
    """Where a command reads besides its directories, and how.

    Parameters
    ----------
    remote
        The directory or URL of a tiered storage, whose remote segments are read with the local ones: clean
        does so with --dry-run and --out, verify for BEFORE.
    storage_option
        An option of the object store of an s3://, gs:// or abfs:// directory, NAME=VALUE; repeat it for more.
    """

    remote: Annotated[str | None, Parameter(name="--remote")] = None
    storage_option: StorageOptions = ()


Json = Annotated[bool, Parameter(name="--json")]
Quiet = Annotated[bool, Parameter(name=("--quiet", "-q"))]
Verbose = Annotated[bool, Parameter(name=("--verbose", "-v"))]
Topics = Annotated[Sequence[str], Parameter(name="--topic")]


def named_directories(
    directories: Sequence[Path], flag: Sequence[Path], remote: str | None = None
) -> list[Path]:
    """The directories that are named as arguments or with ``--dir`` (``flag``), each joined with its segments
    in the ``remote`` storage. Raises UsageError for none, OSError."""
    refuse_if(not (directories or flag), "no log directory", "pass DIR, or --dir DIR")
    return with_remotes([*directories, *flag], remote)


def refuse_if(is_wrong: object, reason: str, advice: str) -> None:
    """Raises UsageError for flags that are wrong, or do not go together; ``advice``: what to pass."""
    if is_wrong:
        raise UsageError(reason, advice=advice)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class DirFlags:
    """The log directories that a command works on; other commands' flags build on it.

    Parameters
    ----------
    dir
        A log directory; repeat it for all log.dirs of one broker.
    storage_option
        An option of the object store of an s3://, gs:// or abfs:// directory, NAME=VALUE; repeat it for more.
    """

    dir: Sequence[Path] = ()
    storage_option: StorageOptions = ()

    def at(self, directories: Sequence[Path]) -> Self:
        """The flags with the directories that are named without ``--dir``, too."""
        return replace(self, dir=(*directories, *self.dir))

    def broker_directories(self, properties: Path | None = None) -> BrokerDirectories:
        """The directories, with a broker's ``server.properties``. Raises UsageError without a directory."""
        refuse_if(not self.dir, "no log directory", "pass DIR, or --dir DIR")
        return BrokerDirectories(paths=tuple(self.dir), server_properties=properties)


@dataclass(frozen=True, kw_only=True)
class TopicFlags(DirFlags):
    """A topic in log directories.

    Parameters
    ----------
    topic
        The topic.
    """

    topic: Annotated[str | None, Parameter(name=("--topic", "-t"))] = None

    def required_topic(self) -> str:
        """The topic. Raises UsageError without one."""
        if self.topic is None:
            raise UsageError("no topic", advice="pass --topic TOPIC")
        return self.topic


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ServerFlags:
    """A running broker, in place of log directories.

    Parameters
    ----------
    bootstrap_server
        HOST:PORT of a running broker, as for Kafka's tools, instead of log directories.
    command_config
        With --bootstrap-server: a file of the client's properties, as librdkafka names them.
    """

    bootstrap_server: str | None = None
    command_config: Path | None = None

    def remote(self) -> "RemoteBroker | None":
        """The running broker; None if the command works on directories. Raises UsageError for both."""
        config = self.client_properties()
        if self.bootstrap_server is None:
            return None
        from siltstone.commands.remote import RemoteBroker

        return RemoteBroker(self.bootstrap_server, config)

    def client_properties(self) -> Mapping[str, str]:
        """The properties in the file of --command-config. Raises UsageError for this flag without a broker,
        and for a broker beside directories."""
        if self.bootstrap_server is None:
            is_alone = self.command_config is not None
            refuse_if(is_alone, "--command-config is only for --bootstrap-server", "leave it out")
            return {}
        has_directory = bool(getattr(self, "dir", ()))
        refuse_if(has_directory, "a directory and --bootstrap-server", "pass one of them")
        from siltstone.log.checkpoints import read_properties

        return read_properties(self.command_config) if self.command_config else {}

    def refuse_at_a_broker(self, *names: str) -> None:
        """Raises UsageError for flags that have a meaning only for directories. ``names``: of fields."""
        for name in names:
            flag = f"--{name.replace('_', '-')}"
            is_set = getattr(self, name) not in (None, (), False)
            refuse_if(is_set, f"{flag} is for log directories, not for a running broker", "leave it out")
