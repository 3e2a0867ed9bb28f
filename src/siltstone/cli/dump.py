"""``siltstone dump``: what is in a log directory's files, read without a broker; or the batches of a running
broker."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from siltstone.base import files as base_files
from siltstone.base.errors import CorruptFileError, UsageError
from siltstone.cli import output
from siltstone.log.coordinator_records import Decoder
from siltstone.log.dump import DumpOptions, Row, dump_file, files_below, printable, render
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


@dataclass(frozen=True, kw_only=True)
class BrokerFlags(output.ServerFlags):
    """The flags for a running broker: what is read of it.

    Parameters
    ----------
    topic
        With --bootstrap-server: the topic.
    partition
        With --bootstrap-server: only this partition; repeat it for more.
    offset
        With --bootstrap-server: begin with the batch that has this offset; default: the log start.
    max_batches
        With --bootstrap-server: the most batches of each partition that are shown.
    """

    topic: Annotated[str | None, Parameter(name=("--topic", "-t"))] = None
    partition: Annotated[Sequence[int], Parameter(name=("--partition", "-p"))] = ()
    offset: Annotated[int | None, Parameter(name=("--offset", "-o"))] = None
    max_batches: int | None = None

    def refuse_without_a_broker(self) -> None:
        """Raises UsageError for flags that have a meaning only for a broker."""
        for name in ("topic", "partition", "offset", "max_batches"):
            flag = f"--{name.replace('_', '-')}"
            is_set = getattr(self, name) not in (None, ())
            output.refuse_if(is_set, f"{flag} is only for --bootstrap-server", "leave it out")


def dump(
    arguments: tuple[Path, ...] = (),
    /,
    *,
    files: Annotated[Sequence[Path], Parameter(name="--files")] = (),
    flags: DumpFlags = DumpFlags(),
    at_broker: BrokerFlags = BrokerFlags(),
    stores: output.StoreFlags = output.StoreFlags(),
    json_: Annotated[bool, _JSON] = False,
) -> int:
    """Show what is in files of a Kafka log directory, or in all of them, as kafka-dump-log does; check them.

    Reads .log, .index, .timeindex, .txnindex and .snapshot files (also .cleaned, .swap, .deleted ones), the
    offset checkpoints, leader-epoch-checkpoint, partition.metadata and meta.properties. Exit status 1 when
    something is wrong with a file (standard error says what and where), 2 for an unknown kind of file.
    With --bootstrap-server it shows the batches of a topic's partitions, as a running broker sends them;
    positions count from the first one.

    Parameters
    ----------
    arguments
        Files, or directories for all files in them and in their partitions.
    files
        The same as in Kafka: a,b are two.
    """
    options, config = flags.with_decoder(), at_broker.client_properties()
    if at_broker.bootstrap_server is not None:
        output.refuse_if(arguments or files, "files and --bootstrap-server", "pass one of them")
        return _dump_at_a_broker(at_broker.bootstrap_server, config, at_broker, options, json_)
    at_broker.refuse_without_a_broker()
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
    """The paths in Kafka's ``--files a,b``. A text with a comma is one path if a file has this name."""
    return [text] if base_files.exists(text) else [part for part in text.split(",") if part]


def _dump_one(file: NamedFile, options: DumpOptions, as_json: bool) -> int:
    """Print one file; returns how many things are wrong with it."""
    findings = 0
    try:
        for row_or_finding in dump_file(file, options):
            findings += _show(row_or_finding, as_json)
    except BrokenPipeError:  # of standard output, not of the file: the command ends
        raise
    except OSError as error:
        findings += 1
        output.note(printable(f"{file.path}: {error.strerror or error}"))
    return findings


def _show(row: Row | CorruptFileError, as_json: bool) -> bool:
    """Print a row, or a finding, which is an error. Returns whether it is a finding."""
    if isinstance(row, dict):
        output.write_lines(json.dumps(row, default=output.plain) if as_json else render(row))
        return False
    if as_json:
        finding = {"file": row.path, "position": row.position, "reason": row.reason}
        output.write_lines(json.dumps({"type": "finding", **finding}))
    output.note(printable(str(row)))
    return True


def _dump_at_a_broker(
    server: str, config: Mapping[str, str], flags: BrokerFlags, options: DumpOptions, as_json: bool
) -> int:
    """Print the batches of a topic's partitions at a running broker; the exit status."""
    for name in ("verify_index_only", "index_sanity_check"):
        flag = f"--{name.replace('_', '-')}"
        output.refuse_if(
            getattr(options, name), f"{flag}: a broker shows no indexes", "pass the files, or leave it out"
        )
    is_wrong = flags.max_batches is not None and flags.max_batches < 1
    output.refuse_if(is_wrong, f"--max-batches {flags.max_batches}: is below 1", "pass 1 or more")
    if flags.topic is None:
        raise UsageError("no topic", advice="pass --topic TOPIC")
    from siltstone.broker.remote_records import PartitionFetcher, dump_rows

    findings = 0
    with PartitionFetcher(server, config) as broker:
        for partition in broker.partitions([flags.topic], flags.partition):
            rows = dump_rows(broker, partition, options, offset=flags.offset, max_batches=flags.max_batches)
            findings += sum(_show(row, as_json) for row in rows)
    return 1 if findings else 0
