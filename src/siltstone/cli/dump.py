"""``siltstone dump``: what is in a log directory's files, read without a broker."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from siltstone.base import files as base_files
from siltstone.base.errors import UsageError
from siltstone.cli import output
from siltstone.log.coordinator_records import Decoder
from siltstone.log.dump import DumpOptions, dump_file, files_below, printable, render
from siltstone.log.indexes import NamedFile
from siltstone.log.tiered.joining import with_remotes

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
        Check .index and .timeindex against their .log, print no entries; of a directory only its indexes.
    index_sanity_check
        Check only that an index file is in itself well-formed; of a directory only its indexes.
    max_bytes
        The most bytes of a .log that are read.
    max_decompressed_message_bytes
        Show no records of a batch that decompresses to more bytes.
    offsets_decoder
        Print keys and values as those of __consumer_offsets.
    transaction_log_decoder
        Print keys and values as those of __transaction_state.
    cluster_metadata_decoder
        Print values as those of __cluster_metadata.
    """

    decoder: Annotated[Decoder | None, Parameter(parse=False)] = None
    offsets_decoder: bool = False
    transaction_log_decoder: bool = False
    cluster_metadata_decoder: bool = False

    def with_decoder(self) -> DumpFlags:
        """The options with the decoder that the flags name. Raises UsageError for contradictions."""
        decoders: dict[Decoder, bool] = {
            "offsets": self.offsets_decoder,
            "transactions": self.transaction_log_decoder,
            "metadata": self.cluster_metadata_decoder,
        }
        chosen = [decoder for decoder, is_chosen in decoders.items() if is_chosen]
        output.refuse_if(len(chosen) > 1, "the decoders exclude each other", "pass one of them")
        reason = "--verify-index-only and --index-sanity-check exclude each other"
        output.refuse_if(self.verify_index_only and self.index_sanity_check, reason, "pass one of them")
        limits = (self.max_bytes, self.max_decompressed_message_bytes)
        for flag, limit in zip(("--max-bytes", "--max-decompressed-message-bytes"), limits, strict=True):
            output.refuse_if(
                limit is not None and limit <= 0, f"{flag} {limit}: is below 1", "pass 1 or more"
            )
        return replace(self, decoder=next(iter(chosen), None))


def dump(
    arguments: tuple[Path, ...] = (),
    /,
    *,
    files: Annotated[Sequence[Path], Parameter(name="--files")] = (),
    flags: DumpFlags = DumpFlags(),
    stores: output.StoreFlags = output.StoreFlags(),
    json_: Annotated[bool, _JSON] = False,
) -> int:
    """Show what is in files of a Kafka log directory, or in all of them, as kafka-dump-log does; check them.

    Reads .log, .index, .timeindex, .txnindex and .snapshot files (also .cleaned, .swap, .deleted ones), the
    offset checkpoints, leader-epoch-checkpoint, partition.metadata and meta.properties. Exit status 1 when
    something is wrong with a file (standard error says what and where), 2 for an unknown kind of file.

    Parameters
    ----------
    arguments
        Files, or directories for all files in them and in their partitions.
    files
        The same as in Kafka: a,b are two.
    """
    options = flags.with_decoder()
    paths = [path for file in (*arguments, *files) for path in _split(os.fspath(file))]
    paths = list(map(os.fspath, with_remotes(list(map(Path, paths)), stores.remote)))
    output.refuse_if(not paths, "no file", "name the files to show")
    try:
        only_indexes = options.verify_index_only or options.index_sanity_check
        identified = [file for path in paths for file in files_below(path, only_indexes=only_indexes)]
    except UsageError as error:
        path = None if error.path is None else printable(error.path)
        raise UsageError(printable(error.reason), path=path, advice=error.advice) from None
    except OSError as error:
        output.note(printable(f"{error.filename}: {error.strerror or error}"))
        return 1
    kind, advice = "index" if only_indexes else "file", "name a partition or a log directory"
    output.refuse_if(not identified, f"no {kind} of a log directory in {printable(', '.join(paths))}", advice)
    findings = [_dump_one(file, options, json_) for file in identified]
    return 1 if any(findings) else 0


def _split(text: str) -> list[str]:
    """Kafka's ``--files a,b``; a name with a comma is one where there is such a file."""
    return [text] if base_files.exists(text) else [part for part in text.split(",") if part]


def _dump_one(file: NamedFile, options: DumpOptions, as_json: bool) -> int:
    """Print one file; returns how many things are wrong with it."""
    findings = 0
    try:
        for part in dump_file(file, options):
            if isinstance(part, dict):
                output.write_lines(json.dumps(part, default=output.plain) if as_json else render(part))
                continue
            findings += 1
            if as_json:
                finding = {"file": part.path, "position": part.position, "reason": part.reason}
                output.write_lines(json.dumps({"type": "finding", **finding}))
            output.note(printable(str(part)))
    except BrokenPipeError:
        raise
    except OSError as error:
        findings += 1
        output.note(printable(f"{file.path}: {error.strerror or error}"))
    return findings
