"""A log before and after, as the checking tasks know it: plain data, and how it is cut into spans.

::

    BEFORE   │ 0 │ 127 │ 300 │ 520 │ 700      segments by base offset
    AFTER    │ 0       │ 300       │ 700
    spans     [..,300)  [300,700)   [700,..)  one for each segment of AFTER; one more below its first
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from siltstone.base.config import LONG_MAX, Config, ConfigSource
from siltstone.base.records.codecs import DEFAULT_LIMIT, LIMIT_SETTING
from siltstone.log.segments import Segment

Producers = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What is known of the cleaning; times in ms. What is None is not known, and not held against AFTER.

    ``now_ms``: its clock; where ``now_is_exact`` is False, only that it was not later. ``deletes``: retention
    may have taken whole segments. ``batch_limit``: what one batch may decompress to, in bytes.
    """

    now_ms: int
    now_is_exact: bool = False
    delete_retention_ms: int | None = None
    index_interval: int | None = None
    index_bytes: int = 10 << 20
    producer_expiration_ms: int = 86_400_000
    deletes: bool = False
    beyond_high_watermark: bool = False
    batch_limit: int = DEFAULT_LIMIT


def terms_of(
    config: Config | None, now_ms: int, *, now_is_exact: bool, beyond_high_watermark: bool = False
) -> Terms:
    """The terms of a topic with these settings, of which defaults that nobody set count for nothing."""
    known = Terms(now_ms=now_ms, now_is_exact=now_is_exact, beyond_high_watermark=beyond_high_watermark)
    if config is None:
        return known

    def given(name: str) -> int | None:
        is_set = config.setting(name).origin is not ConfigSource.DEFAULT_CONFIG
        return config.integer(name) if is_set else None

    return replace(
        known,
        delete_retention_ms=given("delete.retention.ms"),
        index_interval=given("index.interval.bytes"),
        index_bytes=config.integer("segment.index.bytes"),
        producer_expiration_ms=config.integer("producer.id.expiration.ms"),
        deletes="delete" in config.policies
        and config.setting("cleanup.policy").origin is not ConfigSource.DEFAULT_CONFIG,
        batch_limit=config.integer(LIMIT_SETTING),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPair:
    """One log before and after.

    ``first_dirty``: where the cleaner began to look for keys; ``cleaned_end``: up to where it says that it
    went. ``rewritten_end``: segments of BEFORE below it may have been rewritten, those above must be as they
    were. ``aborted``: the entries of BEFORE's ``.txnindex`` files. ``producers``: (id, last data offset, -1
    without one, epoch) of those that are alive. ``hash_key``: of the hash of keys, drawn anew for each run.
    ``tombstones_from``: tombstones from it on wait for the log's compacted ledger, at any age.
    """

    name: str
    before: tuple[Segment, ...]
    after: tuple[Segment, ...]
    first_dirty: int
    cleaned_end: int
    rewritten_end: int
    aborted: bytes
    producers: Producers
    terms: Terms
    hash_key: tuple[int, int]
    tombstones_from: int = LONG_MAX

    @property
    def was_cleaned(self) -> bool:
        """Is there a part that must be clean now? Not where the checkpoint did not move."""
        return self.cleaned_end > self.first_dirty

    @property
    def last_kept_end(self) -> int:
        """The batch that ends right below this offset stays even if it is empty."""
        return self.cleaned_end if self.was_cleaned else self.rewritten_end

    @property
    def legacy_horizon_ms(self) -> int:
        """Tombstones of v0 and v1 may go from segments that were not modified later; 0: none may."""
        clean = [segment for segment in self.before if segment.base_offset < self.first_dirty]
        return clean[-1].modified_ms - (self.terms.delete_retention_ms or 0) if clean else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Offsets [start, end) of a log: segments ``before`` (numbers) beside segment ``after`` (None: gone)."""

    number: int
    start: int
    end: int
    before: tuple[int, ...]
    after: int | None


def spans_of(pair: LogPair) -> list[Span]:
    """The spans of a log, ascending; together they hold every offset."""
    bases = [segment.base_offset for segment in pair.after]
    starts: list[tuple[int, int | None]] = []
    if not bases or (pair.before and pair.before[0].base_offset < bases[0]):
        starts.append((-1, None))
    starts += [(base, number) for number, base in enumerate(bases)]
    found = []
    for number, (start, after) in enumerate(starts):
        end = starts[number + 1][0] if number + 1 < len(starts) else LONG_MAX
        found.append(
            Span(number=number, start=start, end=end, before=_holding(pair.before, start, end), after=after)
        )
    return found


def _holding(segments: tuple[Segment, ...], start: int, end: int) -> tuple[int, ...]:
    """Numbers of the segments that can hold offsets of [start, end)."""
    ends = [*(segment.base_offset for segment in segments[1:]), LONG_MAX]
    return tuple(
        number
        for number, (segment, behind) in enumerate(zip(segments, ends, strict=False))
        if segment.base_offset < end and behind > start
    )
