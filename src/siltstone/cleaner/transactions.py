"""Transactions in a cleaning: which batches were aborted, which markers mark nothing any more.

Kafka's ``CleanedTransactionMetadata``. Aborted are the batches between an aborted transaction's first offset
and its marker; the ``.txnindex`` files of the whole log name them. A marker's transaction is *empty* when no
batch of it was read in this pass, not even one that is dropped in it: such a marker is stamped, and goes once
its horizon has passed.

The state runs over all segments and groups, which different tasks rewrite. So extraction tells, stretch by
stretch, how it left each producer, and ``carried_by_group`` puts that together::

    stretches ── TransactionScan ──► summaries ── carried_by_group ──► Carried, one for each group's start
    a group   ── TransactionScan, from its Carried on ──► aborted batches, empty markers, the new .txnindex
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from siltstone.errors import CorruptFileError
from siltstone.log.indexes import TRANSACTION_ENTRY
from siltstone.records.decode import decode_record_keys
from siltstone.records.integers import read_int16
from siltstone.records.kernel import kernel
from siltstone.records.layout import CONTROL_BIT, TRANSACTIONAL_BIT, Bytes, Directory, Int32, Int64

Flags = npt.NDArray[np.bool_]
Kinds = npt.NDArray[np.int8]
DATA, COMMIT, ABORT, OTHER, EMPTY, SENSELESS = range(6)
"""What a batch is to a transaction; EMPTY: a control batch that an earlier cleaning has emptied."""
CLOSED, OPEN, OBSERVED, UNLISTED = range(4)
"""What a summary's row says: (first offset, this, producer id; for OBSERVED the marker's offset)."""
NOT_LISTED = (
    "producer {producer} aborted a transaction with data that no .txnindex names; "
    "siltstone recover --check builds the index again"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Aborted:
    """A log's aborted transactions, by producer id and first offset: int64 arrays, and the index's entries.

    ``last_offset`` is the marker's, so no two are the same.
    """

    producer_id: Int64
    first_offset: Int64
    last_offset: Int64
    entries: np.ndarray[tuple[int], np.dtype[np.void]]

    @classmethod
    def of(cls, data: bytes) -> Aborted:
        """From the bytes of ``.txnindex`` files, one behind the other in any order."""
        entries = np.frombuffer(data, TRANSACTION_ENTRY)
        entries = entries[np.lexsort((entries["first_offset"], entries["producer_id"]))]
        named = ("producer_id", "first_offset", "last_offset")
        producer_id, first_offset, last_offset = (entries[name].astype(np.int64) for name in named)
        return cls(
            producer_id=producer_id, first_offset=first_offset, last_offset=last_offset, entries=entries
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """What is known where a group starts.

    ``unended``: producers with committed data whose marker has not come yet. ``observed``: the marker's
    offset of each aborted transaction of which data was read.
    """

    unended: tuple[int, ...] = ()
    observed: tuple[int, ...] = ()


NOTHING = Carried()


@kernel
def _kinds(
    rows: Int64,
    batches: Directory,
    data: Bytes,
    first_record: Int64,
    key_start: Int32,
    key_size: Int32,
    kinds: Kinds,
) -> None:
    """What each of the batches ``rows`` is; a control record's key is version 2, type 2."""
    for i in range(len(rows)):
        header = batches[rows[i]]
        record = first_record[i]
        if header.attributes & 0x20 == 0:
            kinds[i] = 0
        elif header.count == 0:
            kinds[i] = 4
        elif key_size[record] < 4 or read_int16(data, key_start[record]) < 0:
            kinds[i] = 5
        else:
            type_ = read_int16(data, key_start[record] + 2)
            kinds[i] = 2 if type_ == 0 else 1 if type_ == 1 else 3


@kernel
def _follow(
    rows: Int64,
    kinds: Kinds,
    place: Int64,
    base_offset: Int64,
    last_offset: Int64,
    bounds: Int64,
    first_aborted: Int64,
    last_aborted: Int64,
    opened: Flags,
    touched: Flags,
    unlisted: Flags,
    observed: Flags,
    ended: Flags,
    aborted: Flags,
    empty: Flags,
) -> int:
    """Go through transactional and control batches in order; returns the one that makes no sense, or -1.

    ``place`` is a batch's producer in the table, of which ``opened``, ``touched`` and ``unlisted`` are
    columns and ``bounds`` its aborted transactions; ``observed`` and ``ended`` have a row for each of those.
    ``aborted`` and ``empty`` are filled, one a batch of the window.
    """
    for i in range(len(rows)):
        row, producer, kind = rows[i], place[i], kinds[i]
        if kind >= 3:
            empty[row] = kind == 4
            continue
        low, high = bounds[producer, 0], bounds[producer, 1]
        while low < high:
            middle = (low + high) // 2
            if first_aborted[middle] <= last_offset[i]:
                low = middle + 1
            else:
                high = middle
        entry = low - 1
        listed = entry >= bounds[producer, 0] and last_aborted[entry] >= base_offset[i]
        if kind == 0:
            aborted[row] = listed
            if listed:
                observed[entry] = True
            else:
                opened[producer] = True
                touched[producer] = True
        elif kind == 1:
            empty[row] = not opened[producer]
            opened[producer] = False
            touched[producer] = True
        elif listed:
            empty[row] = not observed[entry]
            ended[entry] = observed[entry]
        else:
            empty[row] = True
            if opened[producer]:
                return i
            if not touched[producer]:
                unlisted[producer] = True
    return -1


class TransactionScan:
    """Goes along with batches in log order, window by window, from a stretch's or a group's start on."""

    def __init__(self, aborted: Aborted, carried: Carried = NOTHING) -> None:
        self._aborted = aborted
        self._producers = np.array(sorted(carried.unended), np.int64)
        self._opened = np.ones(len(self._producers), np.bool_)
        self._touched, self._unlisted = np.zeros((2, len(self._producers)), np.bool_)
        self._observed = np.isin(aborted.last_offset, np.array(carried.observed, np.int64))
        self._ended = np.zeros(len(aborted.last_offset), np.bool_)

    def follow(
        self, window: Bytes, batches: Directory, *, path: str = "", origin: int = 0
    ) -> tuple[Flags, Flags] | None:
        """Which batches were aborted, and which are markers of empty transactions: bool, one a batch each.

        ``batches`` are rows of a scan over ``window``. None where nothing is transactional. ``path`` and
        ``origin`` are for messages. Raises CorruptRecordError for a control batch that cannot be decoded, and
        CorruptFileError for a control record that makes no sense, or an abort that no index names.
        """
        concerned = (batches["attributes"] & (TRANSACTIONAL_BIT | CONTROL_BIT)) != 0
        rows = np.flatnonzero(concerned & (batches["magic"] == 2))
        if not len(rows):
            return None
        mine = batches[rows]
        kinds = np.empty(len(rows), np.int8)
        control = rows[(mine["attributes"] & CONTROL_BIT) != 0]
        columns = decode_record_keys(window, batches[control], path=path, origin=origin)
        first = np.searchsorted(columns.batch, np.searchsorted(control, rows))
        _kinds(rows, batches, columns.data, first, columns.key_start, columns.key_size, kinds)
        if (kinds == SENSELESS).any():
            position = origin + int(mine["position"][np.argmax(kinds == SENSELESS)])
            raise CorruptFileError(path, position, "a control record's key makes no sense")
        place, bounds = self._places(mine["producer_id"])
        aborted, empty = np.zeros((2, len(batches)), np.bool_)
        bad = _follow(
            *(rows, kinds, place, mine["base_offset"].copy(), mine["last_offset"].copy(), bounds),
            *(self._aborted.first_offset, self._aborted.last_offset),
            *(self._opened, self._touched, self._unlisted, self._observed, self._ended, aborted, empty),
        )
        if bad >= 0:
            reason = NOT_LISTED.format(producer=mine["producer_id"][bad])
            raise CorruptFileError(path, origin + int(mine["position"][bad]), reason)
        return aborted, empty

    def _places(self, producer_ids: Int64) -> tuple[Int64, Int64]:
        """Rows of the table, to which new producers are added, and bounds of its aborted transactions."""
        table = np.union1d(self._producers, producer_ids)
        if len(table) != len(self._producers):
            where = np.searchsorted(table, self._producers)
            for name in ("_opened", "_touched", "_unlisted"):
                grown = np.zeros(len(table), np.bool_)
                grown[where] = getattr(self, name)
                setattr(self, name, grown)
            self._producers = table
        left = np.searchsorted(self._aborted.producer_id, table)
        right = np.searchsorted(self._aborted.producer_id, table, side="right")
        return np.searchsorted(table, producer_ids), np.column_stack((left, right))

    def summary(self, first: int) -> Int64:
        """How a scan from offset ``first`` on left the producers: int64[n, 3], rows as ``OPEN`` says."""
        closed = self._producers[self._touched & ~self._opened]
        opened = self._producers[self._touched & self._opened]
        observed = self._aborted.last_offset[self._observed]
        unlisted = self._producers[self._unlisted]
        parts = ((CLOSED, closed), (OPEN, opened), (OBSERVED, observed), (UNLISTED, unlisted))
        rows = [np.column_stack((np.full((len(v), 2), (first, kind)), v)) for kind, v in parts]
        return np.concatenate(rows).astype(np.int64)

    def ended_transactions(self) -> bytes:
        """The ``.txnindex`` of what was gone through: aborted transactions whose marker came and of which
        data was read, by the marker's offset."""
        ended = self._aborted.entries[self._ended]
        return ended[np.argsort(ended["last_offset"], kind="stable")].tobytes()


def carried_by_group(summaries: Sequence[Int64], bases: Sequence[int], name: str = "") -> dict[int, Carried]:
    """What each group starts with, groups without anything left out.

    ``summaries``: of all stretches of the log, in any order; none of them runs over one of the groups'
    ``bases`` (offsets, ascending). ``name`` is for messages. Raises CorruptFileError for an abort that no
    index names.
    """
    if not summaries:
        return {}
    rows = np.concatenate(summaries)
    rows = rows[np.argsort(rows[:, 0], kind="stable")]
    values, where = np.unique(rows[:, 2], return_inverse=True)
    opened, observed = np.zeros((2, len(values)), np.bool_)
    firsts, begins = np.unique(rows[:, 0], return_index=True)
    ends, taken = [*begins[1:].tolist(), len(rows)], 0
    found: dict[int, Carried] = {}
    for group, behind in enumerate([*np.searchsorted(firsts, bases).tolist(), len(firsts)]):
        for stretch in range(taken, behind):
            part = slice(begins[stretch], ends[stretch])
            _add_stretch(rows[part, 1], where[part], values, opened, observed, name)
        taken = behind
        if group < len(bases):
            markers = values[observed & (values >= bases[group])]
            found[group] = Carried(unended=tuple(values[opened].tolist()), observed=tuple(markers.tolist()))
    return {group: carried for group, carried in found.items() if carried != NOTHING}


def _add_stretch(
    kinds: Int64, where: Int64, values: Int64, opened: Flags, observed: Flags, name: str
) -> None:
    """Take in one stretch's summary; ``opened`` and ``observed`` are columns beside ``values``."""
    unlisted = where[kinds == UNLISTED]
    if opened[unlisted].any():
        producer = int(values[unlisted[np.argmax(opened[unlisted])]])
        raise CorruptFileError(name, 0, NOT_LISTED.format(producer=producer))
    opened[where[kinds == CLOSED]] = False
    opened[where[kinds == OPEN]] = True
    observed[where[kinds == OBSERVED]] = True
