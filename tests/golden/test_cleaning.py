"""Every cleaned round of the golden sets, run through the whole cleaner in place: the files are Kafka's."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import golden_sets
from tests.support.golden.rounds import WAYS, clean_and_compare

NAMES = """
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


def test_no_set_is_forgotten(golden: Path, cleaned: Path) -> None:
    assert {*NAMES, *ONLY_RETENTION} == set(golden_sets.case_names(golden))
    assert set(TRANSACTIONS) == {path.name for path in (cleaned / "transactions").iterdir()}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", NAMES)
def test_cleaned_files_are_kafkas(golden: Path, tmp_path: Path, name: str, way: str) -> None:
    case = golden_sets.load_case(golden, name)
    rounds = [each for each in case.rounds if each.cleaned]
    assert rounds
    for round_ in rounds:
        clean_and_compare(case, round_, tmp_path / str(round_.number), way, force=name in RATIO_LISTED_LATER)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", TRANSACTIONS)
def test_cleaned_transactions_are_kafkas(cleaned: Path, tmp_path: Path, name: str, way: str) -> None:
    case = golden_sets.load_case(cleaned, f"transactions/{name}")
    rounds = [each for each in case.rounds if each.cleaned]
    assert rounds
    for round_ in rounds:
        clean_and_compare(case, round_, tmp_path / str(round_.number), way)
