"""Two logs compared as the specification asks: bytes where plain, fields and records where compressed."""

from __future__ import annotations

from tests.support.cleaning.logs import headers_of, records_in


def assert_same_log(ours: bytes, kafkas: bytes, name: str) -> None:
    """Equal bytes; a compressed batch may differ in size, checksum and the compressed bytes."""
    if ours == kafkas:
        return
    our_headers, kafka_headers = list(headers_of(ours)), list(headers_of(kafkas))
    assert [header for header, _ in our_headers] == [header for header, _ in kafka_headers], name
    for (header, own), (_, other) in zip(our_headers, kafka_headers, strict=True):
        if header.attributes & 7:
            assert records_in(own) == records_in(other), f"{name}: batch at {header.base_offset}"
        else:
            assert own == other, f"{name}: batch at {header.base_offset}"


def is_compressed(data: bytes) -> bool:
    """Is any batch with records compressed?"""
    return any(header.attributes & 7 for header, _ in headers_of(data))
