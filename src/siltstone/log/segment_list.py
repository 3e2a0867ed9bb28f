"""The segments of an open log, in order: rolled, dropped, cut off, swapped (Kafka's ``LocalLog``).

``segments`` is immutable and replaced as a whole: whoever holds it goes on reading what it names. Nothing
here knows of producers, epochs or start offsets, and nothing takes a lock: ``PartitionLog`` does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

from siltstone import files
from siltstone.clock import Clock
from siltstone.config import LogConfig
from siltstone.errors import SourceChangedError
from siltstone.log.live_segment import LiveSegment
from siltstone.log.replacement import Known, swap_in
from siltstone.log.segments import Segment, find_segment


class SegmentList:
    """At least one segment, the last one active. Every method raises OSError where the disk does."""

    def __init__(
        self,
        directory: Path,
        found: Sequence[Segment],
        end_offset: int,
        config: LogConfig,
        clock: Clock,
        random: Random,
    ) -> None:
        self.directory = directory
        self.config = config
        self._clock = clock
        self._random = random
        self.segments = tuple(self._live(each) for each in found)
        if not self.segments:
            self.segments = (self._create(end_offset),)

    @property
    def active(self) -> LiveSegment:
        """The segment that is appended to."""
        return self.segments[-1]

    def _live(self, found: Segment) -> LiveSegment:
        return LiveSegment(found, self.config, created_ms=self._clock.now_ms(), jitter_ms=self._jitter())

    def _create(self, base_offset: int) -> LiveSegment:
        now_ms, jitter_ms = self._clock.now_ms(), self._jitter()
        segment = LiveSegment.create(
            self.directory, base_offset, self.config, now_ms=now_ms, jitter_ms=jitter_ms
        )
        files.sync_directory(self.directory)
        return segment

    def _jitter(self) -> int:
        most = min(self.config.segment_jitter_ms, self.config.segment_ms)
        return self._random.randrange(most) if most > 0 else 0

    def roll(self, base_offset: int) -> LiveSegment:
        """Begin a new active segment behind the one there is."""
        self.active.save_indexes(closing=True)
        fresh = self._create(base_offset)
        self.segments = (*self.segments, fresh)
        return fresh

    def drop_prefix(self, count: int) -> list[Path]:
        """Let go of the ``count`` oldest segments, never the active one; their ``.deleted`` files."""
        going = self.segments[: min(count, len(self.segments) - 1)]
        self.segments = self.segments[len(going) :]
        renamed = []
        for segment in going:
            renamed += segment.retire()
            if self.config.compacts:  # a tombstone must not go before the value that it hides
                files.sync_directory(self.directory)
        if renamed and not self.config.compacts:
            files.sync_directory(self.directory)
        return renamed

    def truncate(self, offset: int) -> Callable[[], None]:
        """Drop all at and above ``offset``: from ``segments`` now, on the disk when the answer is called.

        In between readers can be told. Later segments go first.
        """
        kept = [segment for segment in self.segments if segment.base_offset <= offset]
        going = self.segments[len(kept) :]
        if not kept:
            self.restart(offset)
            return lambda: None
        last = kept[-1].shortened(offset, self.config)
        cut = last is not kept[-1]
        self.segments = (*kept[:-1], last)

        def on_the_disk() -> None:
            self._remove(going)
            if cut:
                last.cut(offset)
            files.sync_directory(self.directory)

        return on_the_disk

    def restart(self, offset: int) -> None:
        """Drop everything; one empty segment at ``offset`` is left.

        It is there before the others go: a log without a segment would start again at 0 after a crash.
        """
        if self.segments[0].base_offset <= offset:
            self.truncate(offset)()
        found = [segment for segment in self.segments if segment.base_offset == offset]
        left = found[0] if found else self._create(offset)
        self._remove([segment for segment in self.segments if segment is not left])
        self.segments = (left,)

    def _remove(self, going: Sequence[LiveSegment]) -> None:
        for segment in reversed(going):
            for path in segment.retire():
                files.unlink(path)
            files.sync_directory(self.directory)

    def closed(self, bases: Sequence[int]) -> tuple[LiveSegment, ...]:
        """The closed segments with these bases. Raises SourceChangedError when one is not there any more."""
        found = tuple(segment for segment in self.segments[:-1] if segment.base_offset in bases)
        if len(found) != len(bases):
            raise SourceChangedError(
                f"{self.directory}: not all of the closed segments {sorted(bases)} are there any more; "
                "nothing was swapped"
            )
        return found

    def swap_files(
        self, new: Sequence[int], going: Sequence[LiveSegment], known: Known
    ) -> tuple[list[LiveSegment], list[Path]]:
        """Swap ``.cleaned`` segments with bases ``new`` in for closed ones, on the disk only.

        ``segments`` names the old ones until ``exchange``, and whoever reads them has their files open. Needs
        no lock but against others that change closed segments. Returns the new segments and the ``.deleted``
        files. Raises CorruptRecordError when a new segment does not read back; nothing old is gone then.
        """
        for segment in going:
            segment.hold()
        retired = swap_in(self.directory, new, [segment.base_offset for segment in going], known)
        return [self._live(find_segment(self.directory, base)) for base in sorted(new)], retired

    def exchange(self, going: Sequence[LiveSegment], fresh: Sequence[LiveSegment]) -> None:
        """The swapped segments are those that are there from now on."""
        for segment in going:
            segment.close_for_append()
        kept = [segment for segment in self.segments if segment not in going]
        self.segments = tuple(sorted((*kept, *fresh), key=lambda segment: segment.base_offset))
