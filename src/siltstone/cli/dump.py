"""``siltstone dump``: what is in a log directory's files, read without a broker."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from siltstone.base.errors import UsageError
from siltstone.base.records.codecs import DEFAULT_LIMIT
from siltstone.cli.output import note, write_line
from siltstone.log.coordinator_records import Decoder
from siltstone.log.dump import DumpOptions, Row, dump_file, identify, printable, render
from siltstone.log.index_checks import Finding, NamedFile

_LIMIT = Parameter(help="Show no records of a batch that decompresses to more bytes.")
_JSON = Parameter(name="--json", help="Print one JSON object a line; keys and values are base64.")


def dump(
    files: list[Path],
    *,
    print_data_log: bool = False,
    deep_iteration: bool = False,
    verify_index_only: bool = False,
    index_sanity_check: bool = False,
    max_bytes: int | None = None,
    max_decompressed_message_bytes: Annotated[int, _LIMIT] = DEFAULT_LIMIT,
    offsets_decoder: bool = False,
    transaction_log_decoder: bool = False,
    json_: Annotated[bool, _JSON] = False,
) -> int:
    """Show what is in files of a Kafka log directory, as kafka-dump-log does, and check them.

    Reads .log, .index, .timeindex, .txnindex and .snapshot files (also .cleaned, .swap, .deleted ones), the
    offset checkpoints, leader-epoch-checkpoint, partition.metadata and meta.properties. Exit status 1 when
    something is wrong with a file (standard error says what and where), 2 for an unknown kind of file.

    Parameters
    ----------
    files
        The files, one or more.
    print_data_log
        Of a .log: print the records with their keys, values and headers.
    deep_iteration
        Of a .log: print the records, the messages in compressed message sets too, without their contents.
    verify_index_only
        Check .index and .timeindex against their .log, print no entries.
    index_sanity_check
        Check only that an index file is in itself well-formed.
    max_bytes
        Read no more of a .log than so many bytes.
    offsets_decoder
        Print keys and values as those of __consumer_offsets.
    transaction_log_decoder
        Print keys and values as those of __transaction_state.
    """
    options = _options(
        print_data_log=print_data_log,
        deep_iteration=deep_iteration,
        verify_index_only=verify_index_only,
        index_sanity_check=index_sanity_check,
        max_bytes=max_bytes,
        max_decompressed_message_bytes=max_decompressed_message_bytes,
        offsets_decoder=offsets_decoder,
        transaction_log_decoder=transaction_log_decoder,
    )
    findings = [_dump_one(file, options, json_) for file in _identified(files)]
    return 1 if any(findings) else 0


def _options(*, offsets_decoder: bool, transaction_log_decoder: bool, **chosen: Any) -> DumpOptions:
    """The options that the flags mean. Raises UsageError for flags that contradict each other."""
    if offsets_decoder and transaction_log_decoder:
        raise UsageError("--offsets-decoder and --transaction-log-decoder: choose one")
    options = DumpOptions(decoder=_decoder(offsets_decoder, transaction_log_decoder), **chosen)
    if options.verify_index_only and options.index_sanity_check:
        raise UsageError("--verify-index-only and --index-sanity-check: choose one")
    if options.max_bytes is not None and options.max_bytes <= 0:
        raise UsageError(f"--max-bytes {options.max_bytes}: must be over 0")
    if options.max_decompressed_message_bytes <= 0:
        given = options.max_decompressed_message_bytes
        raise UsageError(f"--max-decompressed-message-bytes {given}: must be over 0")
    return options


def _decoder(offsets: bool, transactions: bool) -> Decoder | None:
    if offsets:
        return "offsets"
    return "transactions" if transactions else None


def _identified(files: list[Path]) -> list[NamedFile]:
    """What the files are, before anything is printed. Raises UsageError."""
    if not files:
        raise UsageError("no file is given")
    try:
        return [identify(os.fspath(file)) for file in files]
    except UsageError as error:
        raise UsageError(printable(str(error))) from None


def _dump_one(file: NamedFile, options: DumpOptions, as_json: bool) -> int:
    """Print one file; returns how many things are wrong with it."""
    findings = 0
    try:
        for part in dump_file(file, options):
            if not isinstance(part, Finding):
                write_line(_json(part) if as_json else render(part))
                continue
            findings += 1
            if as_json:
                write_line(_json(_finding_row(part)))
            note(printable(str(part)))
    except BrokenPipeError:
        raise
    except OSError as error:
        findings += 1
        note(printable(f"{file.path}: {error.strerror or error}"))
    return findings


def _finding_row(finding: Finding) -> Row:
    return {"type": "finding", "file": finding.path, "position": finding.position, "reason": finding.reason}


def _json(row: Row) -> str:
    return json.dumps(row, default=_base64)


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")
