"""``siltstone erase`` erases keys from a compacted topic, ``siltstone empty`` empties a topic. Both say what
they would remove, and ask for confirmation.

A holder is a file that still has a record of a key (``erasing.Holder``)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Annotated, cast

from siltstone.base import files
from siltstone.base.clock import time_text
from siltstone.base.errors import UsageError
from siltstone.cli import output
from siltstone.commands import emptying, erasing
from siltstone.commands.engines import ENGINES
from siltstone.commands.explain_page import counted, size_text
from siltstone.commands.forced_cleaning import command_actor
from siltstone.commands.library import EngineName

_KEY_BYTES_MAX = 256 << 20
"""The most bytes of a file with keys."""
_HOLDERS_SHOWN = 20
"""Holders that are named; ``--json`` has all of them."""


@dataclass(frozen=True, kw_only=True)
class EraseFlags(output.TopicFlags):
    """The flags of ``siltstone erase``.

    Parameters
    ----------
    key
        A key; repeat it for more. Other users of the machine may see it in the list of processes: the next
        two avoid that.
    key_file
        A file with the key, "-" for standard input; a line end at its end is no part of it.
    keys_file
        A file with a key on each line, at most 1,000, "-" for standard input.
    key_format
        How keys are written: utf8, hex or base64.
    kept
        A folder in which clean --keep-originals kept originals (KEEP or KEEP/RUN, of a fleet also
        KEEP/BROKER/RUN), to be searched, too;
        repeat it.
    server_properties
        The broker's server.properties, for defaults.
    engine
        What cleans: spark, process (this process), or auto: Spark from 256 MiB on.
    yes
        Do not ask.
    dry_run
        Show where the keys are, change nothing, lock nothing.
    """

    key: Annotated[Sequence[str], output.NUMBER_OR_WORD] = ()
    key_file: Annotated[str | None, output.NUMBER_OR_WORD] = None
    keys_file: Annotated[str | None, output.NUMBER_OR_WORD] = None
    key_format: str = "utf8"
    kept: Sequence[Path] = ()
    server_properties: Path | None = None
    engine: str = "auto"
    yes: bool = False
    dry_run: bool = False

    def request(self) -> erasing.ErasureRequest:
        """The request. Raises UsageError, OSError."""
        return erasing.ErasureRequest(topic=self.required_topic(), keys=self._keys(), kept=tuple(self.kept))

    def _keys(self) -> tuple[bytes, ...]:
        output.refuse_if(
            bool(self.key) + (self.key_file is not None) + (self.keys_file is not None) != 1,
            "no key, or two ways to name keys",
            "pass --key KEY, --key-file FILE or --keys-file FILE",
        )
        texts = self.key or self._texts_in_file()
        return tuple(erasing.parse_key(text, self.key_format) for text in texts)

    def _texts_in_file(self) -> list[str]:
        """The key of ``--key-file``, or those of ``--keys-file``. Raises UsageError, also for an empty one,
        OSError."""
        advice = "remove it; the empty key is erased only by --key ''"
        if self.keys_file is None:
            file = self.key_file or ""
            text = _text_in(file, "--key-file")
            output.refuse_if(not text, f"--key-file {file}: is empty", advice)
            return [text]
        texts = _text_in(self.keys_file, "--keys-file").split("\n")
        texts = [line.removesuffix("\r") for line in texts]
        for number, text in enumerate(texts, 1):
            output.refuse_if(not text, f"--keys-file {self.keys_file}: line {number} is empty", advice)
        return texts


def _text_in(file: str, flag: str) -> str:
    """The text of a file or of standard input, without a line end at its end. Raises UsageError for a file
    that is too large, OSError."""
    if file == "-":
        content = sys.stdin.buffer.read(_KEY_BYTES_MAX + 1)
    else:
        content = files.read_input(Path(file), _KEY_BYTES_MAX + 1)
    reason = f"{flag} {file}: is over {size_text(_KEY_BYTES_MAX)}"
    output.refuse_if(len(content) > _KEY_BYTES_MAX, reason, "pass a file with keys only")
    return content.decode("utf-8", "surrogateescape").removesuffix("\n").removesuffix("\r")


def _engine(name: str) -> EngineName:
    """The engine of this name. Raises UsageError if there is none."""
    output.refuse_if(
        name not in ENGINES, f"--engine {name}: there is no such engine", f"pass {', '.join(ENGINES)}"
    )
    return cast(EngineName, name)


def erase(
    directories: output.Directories = (),
    /,
    *,
    flags: EraseFlags = EraseFlags(),
    json_: output.Json = False,
) -> int:
    """Erase keys from a compacted topic: run it twice, the second time after delete.retention.ms.

    The first run writes a tombstone, cleans and searches all files: no value may be left. The second run,
    after delete.retention.ms, cleans the tombstone away and searches: the key may be in no file. A completed
    step writes a receipt for each key to the audit log; one that cannot be completed names the files that
    still have the key (exit status 1, as for a key that no record has).

    Parameters
    ----------
    directories
        The log directories, also as --dir.
    json_
        Print one JSON document instead.
    """
    flags = flags.at(directories)
    request, broker_directories = flags.request(), flags.broker_directories(flags.server_properties)
    engine = _engine(flags.engine)

    def run(*, dry_run: bool) -> erasing.Erasures:
        with output.RunProgress(quiet=json_) as progress:
            actor = command_actor()
            return erasing.erase_in(
                broker_directories, actor, request, dry_run=dry_run, engine=engine, progress=progress
            )

    _require_terminal_unless(flags.yes or flags.dry_run, "the key's records would be erased")
    if flags.yes:
        return _show_erasures(run(dry_run=False), as_json=json_)
    search = run(dry_run=True)
    if flags.dry_run or all(key.status == erasing.ABSENT for key in search.keys):
        return _show_erasures(search, as_json=json_)
    values, tombstones = (sum(getattr(key, name) for key in search.keys) for name in ("values", "tombstones"))
    counts = f"{counted(values, 'value')}, {counted(tombstones, 'tombstone')}"
    named = "the key" if len(search.keys) == 1 else counted(len(search.keys), "key")
    if not _is_confirmed(f"erase {named} from topic {search.topic} ({counts})?"):
        return 1
    return _show_erasures(run(dry_run=False), as_json=json_)


def _show_erasures(done: erasing.Erasures, *, as_json: bool) -> int:
    """Print the results; returns the exit status."""
    if as_json:
        output.write_json(done.to_json())
    elif len(done.keys) == 1:
        _show_erasure(done.keys[0])
    else:
        rows = list(map(_erased_row, done.keys, count(1)))
        output.write_table("", _ERASED_COLUMNS, rows, left=_LEFT_ALIGNED)
        holders = dict.fromkeys(
            erasing.holder_text(done.topic, holder) for key in done.keys for holder in key.holders
        )
        _show_holders(list(holders))
        output.write_wrapped(done.sentence)
    output.note(*done.keys[0].notes)  # they are about the topic, and the same for each key
    return 0 if done.is_complete else 1


_LEFT_ALIGNED = 0
"""How many columns of the tables are aligned left."""
_ERASED_COLUMNS = ("key", "values", "tombstones", "status", "receipts", "tombstone may go")


def _erased_row(key: erasing.Erasure, number: int) -> tuple[object, ...]:
    """A row of the table. ``number``: of the key, in the order in which the keys were passed, from 1 on; it
    is shown in place of the key, which is to be erased."""
    due = "" if key.due_ms is None else time_text(key.due_ms)
    receipts = ", ".join(str(receipt["step"]) for receipt in key.receipts)
    return str(number), key.values, key.tombstones, key.status.replace("_", " "), receipts, due


def _show_holders(lines: Sequence[str]) -> None:
    """Print the lines of the first ``_HOLDERS_SHOWN`` holders, and how many more there are."""
    output.write_wrapped(*lines[:_HOLDERS_SHOWN])
    more = len(lines) - _HOLDERS_SHOWN
    output.write_lines(*([f"and {counted(more, 'file')} more"] if more > 0 else []))


def _show_erasure(done: erasing.Erasure) -> None:
    """Print the result for one key."""
    counts = f"{counted(done.values, 'value')} and {counted(done.tombstones, 'tombstone')}"
    numbers = ", ".join(map(str, done.partitions))
    where = f" in {'partition' if len(done.partitions) == 1 else 'partitions'} {numbers}" if numbers else ""
    output.write_lines(f"topic {done.topic}: {counts} of the key found{where}")
    _show_holders([erasing.holder_text(done.topic, holder) for holder in done.holders])
    statements = [receipt["states"] for receipt in done.receipts]
    output.write_wrapped(*(f"receipt: {statement}" for statement in statements))
    searched = f"{counted(done.files, 'file')}, {size_text(done.bytes)} searched"
    output.write_wrapped(f"{done.sentence} ({searched})")


@dataclass(frozen=True, kw_only=True)
class EmptyFlags(output.TopicFlags, output.ServerFlags):
    """The flags of ``siltstone empty``.

    Parameters
    ----------
    mode
        tombstones: one for each key, so that readers learn of it; truncate: the logs begin at their ends, and
        no reader learns of it.
    server_properties
        The broker's server.properties, for defaults.
    engine
        What cleans: spark, process (this process), or auto: Spark from 256 MiB on.
    yes
        Do not ask.
    dry_run
        Show what would go, change nothing, lock nothing.
    """

    mode: str | None = None
    server_properties: Path | None = None
    engine: str = "auto"
    yes: bool = False
    dry_run: bool = False

    def required_mode(self) -> str:
        """The mode. Raises UsageError."""
        if self.mode is None:
            raise UsageError("no mode", advice=f"pass --mode {' or --mode '.join(emptying.MODES)}")
        return emptying.check_mode(self.mode)


def empty(
    directories: output.Directories = (),
    /,
    *,
    flags: EmptyFlags = EmptyFlags(),
    json_: output.Json = False,
) -> int:
    """Empty a topic; first it says how many records and bytes go, and asks (--dry-run: by partition).

    The mode tombstones is for compacted topics: each key gets a tombstone, and a cleaning removes the values.
    The mode truncate is for all topics, also those with cleanup.policy=compact, where Kafka refuses it. Exit
    status 1 if values are left, with what holds them. At a running broker tombstones are written, and the
    broker's cleaner removes the values at its next cleaning; truncate is what DeleteRecords does.

    Parameters
    ----------
    directories
        The log directories, also as --dir.
    json_
        Print one JSON document instead.
    """
    flags = flags.at(directories)
    topic, mode = flags.required_topic(), flags.required_mode()
    run = _run_of_emptying(flags, topic, mode, quiet=json_)
    _require_terminal_unless(flags.yes or flags.dry_run, f"topic {topic} would be emptied")
    if flags.yes:
        return _show_emptying(run(dry_run=False), as_json=json_)
    result = run(dry_run=True)
    if not flags.dry_run:
        _show_emptying(result, before_question=True)
        if not _is_confirmed(f"empty topic {topic} by {mode}?"):
            return 1
        result = run(dry_run=False)
    return _show_emptying(result, as_json=json_)


def _run_of_emptying(
    flags: EmptyFlags, topic: str, mode: str, *, quiet: bool
) -> Callable[..., emptying.Emptying]:
    """The function that empties the topic; with ``dry_run`` it shows what would go. Raises UsageError."""
    broker = flags.remote()
    if broker is not None:
        flags.refuse_at_a_broker("server_properties")
        is_set = flags.engine != "auto"
        output.refuse_if(is_set, "--engine: a running broker has its own cleaner", "leave it out")
        from siltstone.commands.remote_emptying import empty_at

        return partial(empty_at, broker, topic, mode)
    broker_directories, engine = flags.broker_directories(flags.server_properties), _engine(flags.engine)

    def run(*, dry_run: bool) -> emptying.Emptying:
        with output.RunProgress(quiet=quiet) as progress:
            actor = command_actor()
            return emptying.empty_in(
                broker_directories, actor, topic, mode, dry_run=dry_run, engine=engine, progress=progress
            )

    return run


_EMPTIED_COLUMNS = ("partition", "records", "keys", "bytes", "log start")


def _show_emptying(done: emptying.Emptying, *, as_json: bool = False, before_question: bool = False) -> int:
    """Show what went, or would go; returns the exit status. ``before_question``: show it on standard error,
    and without the table by partition."""
    is_complete = done.dry_run or done.is_empty
    if as_json:
        output.write_json(done.to_json())
        output.note(*done.notes)
        return 0 if is_complete else 1
    write = output.note if before_question else output.write_lines
    if not before_question:
        title = f"what would go from {done.topic} (dry run: nothing was changed)" if done.dry_run else ""
        output.write_table(title, _EMPTIED_COLUMNS, map(_emptied_row, done.partitions), left=_LEFT_ALIGNED)
    for partition in done.partitions:
        if (why := partition.not_removed) is not None:
            write(f"{done.topic}-{partition.partition}: {why.reason}; {why.advice}")
    write(done.sentence)
    output.note(*done.notes)
    return 0 if is_complete else 1


def _emptied_row(partition: emptying.EmptiedPartition) -> tuple[object, ...]:
    """A row of the table. Of what is not known after the emptying only the number before is shown."""
    keys_after = partition.keys_after if partition.keys is not None else None
    keys = output.change_text(partition.keys, partition.keys if keys_after is None else keys_after)
    after = partition.bytes if partition.bytes_after is None else partition.bytes_after
    size = output.change_text(partition.bytes, after, size_text)
    return str(partition.partition), partition.records, keys, size, partition.log_start_offset


def _require_terminal_unless(needs_no_answer: bool, what: str) -> None:
    """Raises UsageError if the user has to be asked and there is no terminal for it."""
    output.refuse_if(
        not needs_no_answer and not (sys.stdin.isatty() and sys.stderr.isatty()),
        f"{what}, and there is no terminal to ask on",
        "pass --yes; --dry-run shows what would go",
    )


def _is_confirmed(question: str) -> bool:
    """Ask on the terminal whether to go on; False for any answer but yes."""
    sys.stdout.flush()
    sys.stderr.write(f"siltstone: {question} [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() in ("y", "yes"):
        return True
    output.note("nothing was changed")
    return False
