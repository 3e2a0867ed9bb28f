"""Searching the texts of many rows, beside a search in each of them."""

from __future__ import annotations

import random

import pytest

from siltstone.commands.row_texts import RowTexts

TEXTS = ["orders-0 due", "", "Orders-1", "aaaa", "line\nbreak", "Straße", "x\udc80y", "due", "orders-0 due"]


@pytest.mark.parametrize(
    "needle",
    [
        "",
        "orders",
        "ORDERS-1",
        "a",
        "aa",
        "aaa",
        "aaaaa",
        "due",
        "e",
        "e b",
        "e\nb",
        "STRASSE",
        "\udc80",
        "\n",
        " ",
    ],
)
def test_rows_are_those_in_which_a_search_of_each_succeeds(needle: str) -> None:
    texts = RowTexts(TEXTS)
    folded_needle = needle.replace("\n", " ").casefold()
    expected = [row for row, text in enumerate(TEXTS) if folded_needle in text.replace("\n", " ").casefold()]
    assert texts.rows_with(needle).tolist() == expected
    assert len(texts) == len(TEXTS)


@pytest.mark.parametrize("texts", [[], [""], ["", ""]])
def test_no_rows_and_empty_rows_are_searched_like_others(texts: list[str]) -> None:
    assert RowTexts(texts).rows_with("a").tolist() == []
    assert RowTexts(texts).rows_with("").tolist() == list(range(len(texts)))


@pytest.mark.parametrize("seed", range(20))
def test_a_search_of_random_rows_finds_those_with_the_needle(seed: int) -> None:
    chance = random.Random(seed)
    texts = ["".join(chance.choices("abA ", k=chance.randrange(6))) for _ in range(chance.randrange(30))]
    row_texts = RowTexts(texts)
    for _ in range(20):
        needle = "".join(chance.choices("ab ", k=chance.randrange(4)))
        expected = [row for row, text in enumerate(texts) if needle in text.casefold()]
        assert row_texts.rows_with(needle).tolist() == expected
