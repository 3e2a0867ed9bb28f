"""A ledger in the making: the one before it, what a run adds, what is put together anew, then the commit.

Generations that are not touched stay the directories that they are; only their hidden offsets grow. New ones
are put together in the run's folder, under the names that they will have.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from siltstone import files
from siltstone.compacted.checks import refuse_doubtful_fold
from siltstone.compacted.engine import Compacted, CompactionEngine
from siltstone.compacted.generations import MOST_GENERATIONS, Weight, folds
from siltstone.compacted.key_index import KeysPart, assemble
from siltstone.compacted.keys import WORDS, WORDS_BY_TIME
from siltstone.compacted.sources import groups_of
from siltstone.compacted.staging import KINDS, FoldWork, Rewritten
from siltstone.compacted.work import CompactionWork, OldKeys, Output, Source
from siltstone.log.ledger.held import generation_name
from siltstone.log.ledger.manifest import BY_TIME, Generation, Ledger, SegmentEntry
from siltstone.log.ledger.store import KEYS, LedgerStore
from siltstone.log.names import segment_file
from siltstone.records.codecs import DEFAULT_LIMIT
from siltstone.records.layout import Int64


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Sizes of what is written and of what tasks take, in bytes; ``most_generations`` of a ledger.

    ``batch_limit``: what one batch may decompress to; the log's own setting is put in its place.
    """

    segment_bytes: int = 1 << 30
    index_interval: int = 4096
    index_bytes: int = 10 << 20
    window_size: int = 4 << 20
    memory_bytes: int = 256 << 20
    batch_limit: int = DEFAULT_LIMIT
    most_generations: int = MOST_GENERATIONS

    def output(self, run: Path) -> Output:
        """The same for tasks that write into ``run``."""
        return Output(
            staging=str(run),
            segment_bytes=self.segment_bytes,
            index_interval=self.index_interval,
            index_bytes=self.index_bytes,
            window_size=self.window_size,
            memory_bytes=self.memory_bytes,
            batch_limit=self.batch_limit,
        )


class Draft:
    """The next ledger of a log. ``ledger``: the one before it; ``run``: the folder of this run.

    ``horizon``: where the tail begins, None without a ledger. ``newly_hidden``: records of the ledger before
    that are hidden from now on. ``written_bytes``: of new segments' logs, folded ones included.
    """

    def __init__(
        self, store: LedgerStore, run: Path, ledger: Ledger | None, ways: tuple[str, bool], settings: Settings
    ) -> None:
        self.store, self.run, self.ledger = store, run, ledger
        self.order, self.retain_null_key = ways
        self.settings = settings
        self.horizon = None if ledger is None else ledger.horizon
        self.hash_key = (secrets.randbits(64), secrets.randbits(64)) if ledger is None else ledger.hash_key
        self.generations: list[Generation] = [] if ledger is None else list(ledger.generations)
        self.hidden: dict[int, Int64] = {} if ledger is None else store.hidden(ledger)
        self.staged: dict[int, Path] = {}
        self._ledger_id, self._next_id = store.next_ids()
        self.newly_hidden = self.written_bytes = 0
        self._end = 0

    def directory_of(self, generation: int) -> Path:
        """Where a generation lies now."""
        return self.staged.get(generation, self.store.folder / generation_name(generation))

    def keys_of(self, generation: int) -> Path:
        """Its key index."""
        return self.directory_of(generation) / KEYS

    def extend(self, work: CompactionWork, done: Compacted) -> None:
        """Add what a tail has become. Raises CorruptFileError, OSError."""
        self._end = work.end
        for generation, parts in done.hidden.items():
            before = self.hidden.get(generation, np.empty(0, np.int64))
            self.hidden[generation] = np.unique(np.concatenate([before, *parts]))
            self.newly_hidden += len(self.hidden[generation]) - len(before)
        base = work.first if self.horizon is None else self.horizon
        if self.generations and not done.groups and not any(part.entries for part in done.keys):
            self.generations[-1] = replace(self.generations[-1], end_offset=work.end)
            return
        self.generations.append(self._stage(base, work.end, done.groups, done.keys))

    def _stage(
        self, base: int, end: int, groups: Iterable[Rewritten], keys: Sequence[KeysPart]
    ) -> Generation:
        """Put a new generation's directory together, durably."""
        number, self._next_id = self._next_id, self._next_id + 1
        directory = self.run / generation_name(number)
        files.make_directory(directory)
        segments, records = [], 0
        for group in sorted(groups, key=lambda group: group.group):
            records += group.kept
            for segment in group.segments:
                for kind in KINDS:
                    files.rename(
                        f"{segment.stem}.{kind}", directory / segment_file(segment.base_offset, kind)
                    )
                segments.append(
                    SegmentEntry(
                        base_offset=segment.base_offset,
                        size=segment.size,
                        crc=segment.crc,
                        index_crc=segment.index_crc,
                        time_index_crc=segment.time_index_crc,
                    )
                )
        words = WORDS_BY_TIME if self.order == BY_TIME else WORDS
        keys_size, keys_crc = assemble(directory / KEYS, keys, words, self.hash_key)
        files.sync_directory(directory)
        self.staged[number] = directory
        size = sum(segment.size for segment in segments)
        self.written_bytes += size
        return Generation(
            id=number,
            base_offset=base,
            end_offset=end,
            records=records,
            size=size,
            segments=tuple(segments),
            keys_size=keys_size,
            keys_crc=keys_crc,
            hidden=0,
        )

    def fold(self, engine: CompactionEngine, name: str) -> tuple[int, ...]:
        """Put generations together where it is worth it; the ids of those of the ledger before that went.

        Raises CompactionFailedError, CheckFailedError, EngineError, OSError.
        """
        weights = [
            Weight(size=each.size, records=each.records, hidden=len(self.hidden.get(each.id, ())))
            for each in self.generations
        ]
        gone: list[int] = []
        for first, last in reversed(folds(weights, self.settings.most_generations)):
            old = self.generations[first:last]
            self.generations[first:last] = [self._folded(engine, name, old)]
            for each in old:
                self.hidden.pop(each.id, None)
                if self.staged.pop(each.id, None) is None:
                    gone.append(each.id)
        return tuple(sorted(gone))

    def _folded(self, engine: CompactionEngine, name: str, old: Sequence[Generation]) -> Generation:
        sources = tuple(source for each in old for source in self._sources(each))
        work = FoldWork(
            name=name,
            sources=sources,
            groups=groups_of(sources, old[-1].end_offset, engine.workers),
            hidden={each.id: self.hidden[each.id] for each in old if each.id in self.hidden},
            keys=tuple(OldKeys(generation=each.id, path=str(self.keys_of(each.id))) for each in old),
            hash_key=self.hash_key,
            output=self.settings.output(self.run),
        )
        done = engine.fold(work)
        live = sum(each.records - len(self.hidden.get(each.id, ())) for each in old)
        one_key_each = self.order != BY_TIME and not self.retain_null_key
        refuse_doubtful_fold(name, done, live, keys=live if one_key_each else None)
        parts = [each.keys for each in done.keys if each.keys is not None]
        return self._stage(old[0].base_offset, old[-1].end_offset, done.groups, parts)

    def _sources(self, generation: Generation) -> Iterable[Source]:
        """A generation's segments as sources."""
        ends = [segment.base_offset for segment in generation.segments[1:]] + [generation.end_offset]
        for segment, end in zip(generation.segments, ends, strict=False):
            path = self.directory_of(generation.id) / segment_file(segment.base_offset, "log")
            facts = files.stat(path)
            yield Source(
                path=str(path),
                base_offset=segment.base_offset,
                end_offset=end,
                start=0,
                size=segment.size,
                inode=facts.inode,
                generation=generation.id,
            )

    def commit(self, now_ms: int) -> Ledger:
        """Make it the log's ledger. Raises CheckFailedError, OSError."""
        generations = tuple(
            replace(each, hidden=len(self.hidden.get(each.id, ()))) for each in self.generations
        )
        ledger = Ledger(
            id=self._ledger_id,
            horizon=self._end,
            generations=generations,
            order=self.order,
            hash_key=self.hash_key,
            retain_null_key=self.retain_null_key,
            created_ms=now_ms,
            hidden_crc=None,
        )
        return self.store.commit(ledger, self.hidden, self.staged)
