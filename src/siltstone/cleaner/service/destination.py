"""Into logs that are open: each group is swapped under the log's claim, readers and appends going on.

What is staged belongs to the cleaner alone. Only here does it touch the log: in ``Claim.changing``, for which
whoever aborts the cleaning waits, and which raises CleaningAbortedError once somebody has.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator, Mapping, Sequence

from siltstone.cleaner import resume
from siltstone.cleaner.destination import InPlace, check_sizes, cleaned_up_to, swap_of
from siltstone.cleaner.facts import LogState, Planned
from siltstone.cleaner.journal import Journal
from siltstone.cleaner.service.open_logs import Candidate
from siltstone.cleaner.staging import Rewritten
from siltstone.errors import CleaningAbortedError, SiltstoneError
from siltstone.log.names import TopicPartition
from siltstone.log.own_folders import has_own_folder
from siltstone.log.replacement import adopt, drop_cleaned
from siltstone.log.service.cleaning_states import Claim
from siltstone.log.service.upkeep import Upkeep

_FULL = (errno.ENOSPC, errno.EDQUOT)


class IntoOpenLogs(InPlace):
    """``logs``: those of the run, by partition, each with its claim.

    An interrupted run is not gone on with, but what it has swapped is cleaned: groups are whole by
    themselves, and the checkpoint moves only when all of them are in.
    """

    def __init__(
        self, run: str, logs: Mapping[TopicPartition, tuple[Candidate, Claim]], upkeep: Upkeep
    ) -> None:
        super().__init__(run)
        self._logs = logs
        self._upkeep = upkeep

    @property
    def at_once(self) -> int:
        """One: appends wait for no more than one swap."""
        return 1

    @contextlib.contextmanager
    def _changing(self, state: LogState) -> Iterator[Candidate]:
        candidate, claim = self._logs[state.where]
        with claim.changing():
            yield candidate

    def _write_checkpoint(self, candidate: Candidate, offset: int) -> None:
        try:
            candidate.served.write_cleaner_checkpoint(candidate.where, offset)
        except OSError as error:
            if error.errno not in _FULL:
                candidate.served.go_offline(f"{error.strerror or error}")
            raise

    def tidy(self, state: LogState) -> list[str]:
        """Drop what an earlier run staged; nothing else is unfinished in a log that is open."""
        return resume.sweep(state.path, keep=False) if has_own_folder(state.path) else []

    def unfinished(self, state: LogState) -> resume.Unfinished | None:
        """None: see above."""
        return None

    def reset_checkpoint(self, state: LogState, offset: int) -> None:
        """Write the checkpoint anew."""
        with self._changing(state) as candidate:
            self._write_checkpoint(candidate, offset)

    def prepare(self, planned: Planned) -> None:
        """Make the staging folder, unless the log is wanted back already."""
        self._logs[planned.state.where][1].check()
        super().prepare(planned)

    def remember(self, planned: Planned, journal: Journal) -> None:
        """Nothing to remember, but a moment to see whether to go on."""
        self._logs[planned.state.where][1].check()

    @property
    def takes_together(self) -> bool:
        """No: appends wait for no more than one group's swap."""
        return False

    def accept(self, planned: Planned, groups: Sequence[Rewritten]) -> None:
        """Swap groups in; their sources' files are unlinked after ``file.delete.delay.ms``."""
        found = swap_of(planned, groups)
        directory = planned.state.path
        with self._changing(planned.state) as candidate:
            try:
                for group in groups:
                    check_sizes(group)
                adopt(directory, found.staged)
                retired = candidate.log.replace(list(found.staged), found.old, found.known)
            except (SiltstoneError, OSError):
                for base_offset in found.staged:
                    with contextlib.suppress(OSError):
                        drop_cleaned(directory, base_offset)
                raise
        delay_ms = candidate.log.config.file_delete_delay_ms
        self._upkeep.unlink_later(candidate.served, retired, delay_ms)

    def finish(self, planned: Planned) -> None:
        """Move the cleaner checkpoint; then old segments of ``compact,delete``, and those below the log
        start, have their turn, which retention has left to us."""
        with self._changing(planned.state) as candidate:
            self._write_checkpoint(candidate, cleaned_up_to(planned))
        with contextlib.suppress(SiltstoneError, OSError):
            self.give_up(planned)
        candidate, _ = self._logs[planned.state.where]
        with (
            contextlib.suppress(CleaningAbortedError),
            self._changing(planned.state),
            self._upkeep.guarded(candidate.served),
        ):
            self._upkeep.delete_old_segments_of(candidate.served, candidate.log)

    def pause(self, planned: Planned) -> None:
        """The same as giving up."""
        self.give_up(planned)
