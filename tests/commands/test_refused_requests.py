"""Requests that a command refuses before it opens a directory, with the flag and what to pass instead."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from siltstone.base.errors import UsageError
from siltstone.commands.clean import CleanRequest, clean
from siltstone.commands.offsets import parse_partitions, parse_time, read_offsets
from siltstone.commands.policies import high_watermark_is_end
from siltstone.commands.records import parse_range
from siltstone.commands.review import ExplainRequest, explain
from siltstone.commands.topics import matching_topics
from tests.support.errors import raises_error
from tests.support.operator.staged import no_engine


def refused(tmp_path: Path, about: str, advice: str, path: Path | None = None, **flags: Any) -> None:
    """``clean`` refuses these flags; the directory need not exist."""
    request = CleanRequest(**{"directories": [tmp_path / "logs"], **flags})
    with raises_error(UsageError, about=about, advice=advice, path=path):
        clean(request, engine=no_engine)


def test_a_cleaning_needs_one_destination(tmp_path: Path) -> None:
    refused(tmp_path, "--in-place", "--dry-run")
    refused(tmp_path, "--out", "--in-place", in_place=True, out=tmp_path / "new")


def test_flags_of_a_cleaning_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    refused(tmp_path, "--max-extra-bytes 0", "bytes", in_place=True, max_extra_bytes=0)
    refused(tmp_path, "--high-watermark 3", "end", in_place=True, high_watermark="3")
    two = [tmp_path / "one", tmp_path / "two"]
    refused(tmp_path, "--out", "--in-place", directories=two, out=tmp_path / "new")
    refused(tmp_path, "--keep-originals", "--in-place", out=tmp_path / "new", keep_originals=tmp_path / "k")


@pytest.mark.parametrize("flag", ["out", "report"])
def test_outputs_of_a_cleaning_must_be_new_and_in_a_directory_that_exists(tmp_path: Path, flag: str) -> None:
    flags: dict[str, Any] = {"dry_run": True}
    (tmp_path / "there").touch()
    for path in (tmp_path / "there", tmp_path / "missing" / "new"):
        refused(tmp_path, f"--{flag}", "path", path, **flags, **{flag: path})


@pytest.mark.parametrize(
    ("parse", "text", "about", "advice"),
    [
        (parse_time, "soon", "--time soon", "max-timestamp"),
        (parse_time, "latest-tiered", "remote storage", "max-timestamp"),
        (parse_partitions, "1,x", "'x'", "0,2-4,7-"),
        pytest.param(parse_partitions, f"0,1-{'9' * 5000}", "no number", "0,2-4,7-", id="5,000 digits"),
        (parse_range, "x@5", "-o x@5", "s@ms,e@ms"),
        (high_watermark_is_end, "start", "--high-watermark start", "--high-watermark end"),
        (lambda text: matching_topics([], text), "(", "--topic (", "siltstone topics --list"),
    ],
)
def test_values_of_flags_are_refused_with_those_that_are_allowed(
    parse: Callable[[str], object], text: str, about: str, advice: str
) -> None:
    with raises_error(UsageError, about=about, advice=advice):
        parse(text)


def test_a_file_of_offsets_is_refused_with_its_path_and_its_form(tmp_path: Path) -> None:
    path = tmp_path / "offsets.json"
    row = '{"topic": "a", "partition": 0, "offset": 5}'
    for text, about, advice in (
        ("[]", "--offset-json-file", '"version": 1'),
        ("[" * 200_000, "--offset-json-file", '"version": 1'),
        (f'{{"partitions": [{row}, {row}], "version": 1}}', "a-0", "once"),
    ):
        path.write_text(text)
        with raises_error(UsageError, path=path, about=about, advice=advice):
            read_offsets(path)


def test_an_explanation_of_fewer_than_no_keys_is_refused(tmp_path: Path) -> None:
    with raises_error(UsageError, about="--top -1", advice="0"):
        explain(ExplainRequest(directories=[tmp_path], top=-1))


def test_topics_are_listed_with_commas_as_in_kafka() -> None:
    names = ["a", "ab", "b", "c"]
    assert matching_topics(names, "a,b") == matching_topics(names, "'a, b'") == ["a", "b"]
