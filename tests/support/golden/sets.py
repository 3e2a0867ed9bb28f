"""The golden sets by kind, and the rounds of those in old formats."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.support import golden_sets
from tests.support.thoroughness import THOROUGH, few

CLEANED = """
    basic basic_zipf_ts codec_gzip codec_lz4 codec_mixed codec_snappy codec_zstd compact_delete_bytes
    compact_delete_ms compact_then_delete_ms compact_then_delete_ms2 delete_records_compact
    delete_records_compact2 grouping grouping_index_limit grouping_resize idempotent idempotent_gzip
    jcodec_gzip jcodec_lz4 jcodec_none jcodec_snappy jcodec_zstd keyless min_lag mixed mixed_logappend
    tombstones tombstones_long tombstones_zero tombstones_zstd topic_recompress txn
""".split()
TRANSACTIONS = ["txn_java", "txn_long_retention", "txn_lz4", "txn_open"]
ONLY_RETENTION = {"delete_records_delete", "retention_bytes", "retention_ms", "retention_ms_all"}
RATIO_LISTED_LATER = {"compact_then_delete_ms", "compact_then_delete_ms2"}
"""Their case.json lists the ratio that was set after the cleaning."""
OLD_FORMATS = """
    v0_basic v0_gzip v0_lz4 v0_snappy v0_tombstones v0_v1_v2 v1_basic v1_grouping v1_gzip
    v1_keyless_then_compact v1_logappend v1_lz4 v1_min_lag v1_mixed v1_snappy v1_to_v2 v1_tombstones
    v1_tombstones_gzip v1_tombstones_zero v2_tombstones_28
""".split()
ONE_OF_EACH_KIND = frozenset(
    """
    basic codec_lz4 codec_mixed codec_snappy codec_zstd delete_records_compact grouping idempotent
    jcodec_gzip keyless mixed_logappend tombstones txn
    v0_basic v0_gzip v0_lz4 v0_v1_v2 v1_keyless_then_compact v1_logappend v1_lz4 v1_mixed v1_snappy
    v1_tombstones v2_tombstones_28
    """.split()
)
"""Of ``CLEANED`` and ``OLD_FORMATS``: every format, codec and kind of record."""
DIRECTORIES = ("after_43", "after_43_2")


def of_each_kind(names: list[str]) -> list[str]:
    """The sets, by name or path, that stand for their kind; all when thorough."""
    return [name for name in names if THOROUGH or Path(name).name in ONE_OF_EACH_KIND]


def one_of_each_kind(names: list[str]) -> list[Any]:
    """Parameters of a test: sets that stand for their kind in every run, the others in ``make test-long``."""
    return few(
        [(name,) for name in names], *(at for at, name in enumerate(names) if name in ONE_OF_EACH_KIND)
    )


def old_format_rounds(case: golden_sets.Case) -> list[golden_sets.Round]:
    """The rounds of ``after_43.json``: a directory that 2.8 left, and what 4.3 made of it."""
    cleanings = json.loads((case.path / "after_43.json").read_text())
    before = {round_.before.name: round_ for round_ in case.rounds}
    return [
        replace(
            before[cleaning["from"]],
            after=case.path / after,
            now_ms=_clock(cleaning),
            config=cleaning["config"],
            checkpoints_after=cleaning["checkpoints_after"],
            raw=cleaning,
        )
        for cleaning, after in zip(cleanings, DIRECTORIES, strict=False)
    ]


def _clock(cleaning: dict[str, Any]) -> int:
    horizons = [int(horizon) for horizon in cleaning["delete_horizons"]]
    began: int = cleaning["begin_ms"]
    newest = max(horizons, default=0) - int(cleaning["config"]["delete.retention.ms"])
    return newest if abs(newest - began) < 1000 else began
