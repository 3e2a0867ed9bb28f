"""``siltstone dump``: what is in a log directory's files, read without a broker."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from siltstone.base.errors import CorruptFileError, UsageError
from siltstone.cli.output import note, plain, refuse_if, write_lines
from siltstone.log.coordinator_records import Decoder
from siltstone.log.dump import DumpOptions, dump_file, identify, printable, render
from siltstone.log.indexes import NamedFile

_JSON = Parameter(name="--json", help="Print one JSON object a line; keys and values are base64.")


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class DumpFlags(DumpOptions):
    """The options as flags.

    Parameters
    ----------
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
    max_decompressed_message_bytes
        Show no records of a batch that decompresses to more bytes.
    offsets_decoder
        Print keys and values as those of __consumer_offsets.
    transaction_log_decoder
        Print keys and values as those of __transaction_state.
    """

    decoder: Annotated[Decoder | None, Parameter(parse=False)] = None
    offsets_decoder: bool = False
    transaction_log_decoder: bool = False

    def with_decoder(self) -> DumpFlags:
        """The options with the decoder that the flags name. Raises UsageError for contradictions."""
        two_decoders = self.offsets_decoder and self.transaction_log_decoder
        refuse_if(two_decoders, "--offsets-decoder and --transaction-log-decoder: choose one")
        two_checks = self.verify_index_only and self.index_sanity_check
        refuse_if(two_checks, "--verify-index-only and --index-sanity-check: choose one")
        for name in ("max_bytes", "max_decompressed_message_bytes"):
            limit = getattr(self, name)
            refuse_if(limit is not None and limit <= 0, f"--{name.replace('_', '-')} {limit}: must be over 0")
        decoder: Decoder | None = "transactions" if self.transaction_log_decoder else None
        return replace(self, decoder="offsets" if self.offsets_decoder else decoder)


def dump(
    files: list[Path],
    *,
    flags: DumpFlags = DumpFlags(),
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
    """
    options = flags.with_decoder()
    refuse_if(not files, "no file is given")
    try:
        identified = [identify(os.fspath(file)) for file in files]
    except UsageError as error:
        raise UsageError(printable(str(error))) from None
    findings = [_dump_one(file, options, json_) for file in identified]
    return 1 if any(findings) else 0


def _dump_one(file: NamedFile, options: DumpOptions, as_json: bool) -> int:
    """Print one file; returns how many things are wrong with it."""
    findings = 0
    try:
        for part in dump_file(file, options):
            if not isinstance(part, CorruptFileError):
                write_lines(json.dumps(part, default=plain) if as_json else render(part))
                continue
            findings += 1
            if as_json:
                place = {"file": part.path, "position": part.position, "reason": part.reason}
                write_lines(json.dumps({"type": "finding", **place}))
            note(printable(str(part)))
    except BrokenPipeError:
        raise
    except OSError as error:
        findings += 1
        note(printable(f"{file.path}: {error.strerror or error}"))
    return findings
