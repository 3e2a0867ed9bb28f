"""Words for the values of settings on the console's pages."""

from __future__ import annotations

import pytest

from siltstone.web.pages import rendering


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("retention.ms", "604800000", "7 d"),
        ("retention.ms", "999", ""),
        ("retention.ms", "-1", ""),
        ("retention.ms", str((1 << 63) - 1), "never"),
        ("flush.messages", str((1 << 63) - 1), "never"),
        ("flush.messages", "10000", ""),
        ("retention.bytes", "1500000", "1.5 MB"),
        ("retention.bytes", str((1 << 63) - 1), "unlimited"),
        # Texts of which no number can be made: settings of the type STRING have any.
        ("broker.rack", "²", ""),
        ("broker.rack", "--5", ""),
        ("broker.rack", "٣", ""),
        ("broker.rack", "9" * 5000, ""),
        ("broker.rack", "", ""),
    ],
)
def test_the_value_of_a_setting_in_words(name: str, text: str, words: str) -> None:
    assert rendering._meaning(text, name) == words
