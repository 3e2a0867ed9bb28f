"""Times as text."""

from __future__ import annotations

import pytest

from siltstone.base.clock import iso_ms

DAY = 86_400_000


@pytest.mark.parametrize(
    ("text", "at_ms"),
    [
        ("1970-01-02", DAY),
        ("19700102", DAY),
        (" 1970-01-02T00:00 ", DAY),
        ("1970-01-02T00:00:00.001Z", DAY + 1),
        ("1970-01-02T01:00:00.0019+01:00", DAY + 1),
        ("1969-12-31T23:59:59.9999", -1),
        ("0001-01-01T00:00+23:59", -62_135_683_140_000),
        *((text, None) for text in ("", "soon", "1970", "1970-13-01", "24:00", "1\0")),
    ],
)
def test_a_time_in_iso_8601_is_of_utc_unless_it_has_a_zone(text: str, at_ms: int | None) -> None:
    assert iso_ms(text) == at_ms
