"""What must hold after any command, whatever was done to the directory before it.

::

    before ──► attack ──► [plain.read] ──► command ──► [plain.read] ──► the two are compared here

Every record that is not there any more must have a reason that the log itself gives (``Rules`` holds what the
operator allowed); every one that is still there reads the same; offsets ascend; the end does not go back. It
is written apart from the cleaner and uses nothing of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from tests.adversary import plain
from tests.adversary.plain import ABORTED, COMMITTED, OPEN, Log, Record, Segment

LONG_MAX = (1 << 63) - 1
INT_MAX = (1 << 31) - 1
MAX_LISTED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What a command may do to a log.

    ``cleans``: compaction may take records, below ``committed`` (the high watermark's entry; None: none is
    known and the operator said so). ``cuts``: recovery may cut off damage, and what lies behind it.
    ``expires``: retention may take a prefix. ``doubtful``: the attack contradicts itself about transactions,
    so that a record of one may count as committed or not. ``appends``: records were added at the end.
    ``twice``: it may have cleaned two times, the second one by what the first one stamped.
    """

    now_ms: int
    cleans: bool = False
    cuts: bool = False
    expires: bool = False
    committed: int | None = None
    active: int | None = None
    drop_keyless: bool = False
    retention_ms: int = -1
    retention_bytes: int = -1
    delete_retention_ms: int = 86_400_000
    log_start: int = 0
    recovery_point: int = 0
    doubtful: bool = False
    appends: bool = False
    snapshots_hold: bool = True
    reported_cut: bool = False
    settings_known: bool = True
    twice: bool = False


def bound_of(before: Log, rules: Rules) -> int:
    """Nothing at or above it may be cleaned, nor count against what lies below."""
    bounds = [before.end_offset if rules.active is None else rules.active]
    if rules.committed is not None:
        bounds.append(rules.committed)
    if before.open_from is not None and not rules.doubtful:
        bounds.append(before.open_from)
    return min(bounds)


def problems(before: Log, after: Log, rules: Rules) -> list[str]:
    """What is wrong with a log after a command; empty when all is well."""
    listed = []
    if before.odd and before.logs() != after.logs():
        return [f"a log with {before.odd[0]}, which is no file, was changed"]
    if not before.ascends and rules.cuts and rules.reported_cut:
        cut = before.cut_at_disorder()
        if cut.ascends and not problems(cut, after, replace(rules, doubtful=True, appends=True)):
            return []
    if not before.ascends:
        limit = before.disordered_from
        for base, segment in before.segments.items():
            now = after.segments.get(base)
            following = min((later for later in before.segments if later > base), default=LONG_MAX)
            if now is None and rules.expires and following <= rules.log_start:
                continue
            if base >= limit and (now is None or now.data != segment.data) and not rules.reported_cut:
                listed.append(f"segment {base}, at or above disorder in {limit}, was changed")
        rules = replace(rules, doubtful=True, active=None, committed=None, appends=True)
        before, after = before.below(limit), after.below(limit)
    listed += [*_first_few(_order(before, after, rules)), *_first_few(_differing(before, after, rules))]
    listed += _first_few(_missing(before, after, rules))
    listed += _first_few(_damage_stays(before, after, rules))
    listed += _first_few(_end(before, after, rules))
    if rules.cleans:
        listed += _first_few(_horizons(before, after, rules))
        listed += _first_few(_markers(before, after, rules))
    return listed


def _first_few(lines: Iterator[str]) -> list[str]:
    """The first few."""
    every = list(lines)
    return every[:MAX_LISTED] + ([f"and {len(every) - MAX_LISTED} more"] if len(every) > MAX_LISTED else [])


def _order(before: Log, after: Log, rules: Rules) -> Iterator[str]:
    if before.ascends and not after.ascends:
        yield "offsets do not ascend any more"
    bytes_before = b"".join(before.logs().values())
    for base, segment in after.segments.items():
        old = before.segments.get(base)
        if segment.damaged_at is None or (old is not None and old.data == segment.data):
            continue
        if segment.data in bytes_before or (
            old is not None and rules.cuts and old.data.startswith(segment.data)
        ):
            continue  # a segment that is too wide was split, or cut
        if old is not None and rules.appends and segment.data.startswith(old.data):
            continue
        if old is not None and rules.appends and rules.cuts and _same_up_to_damage(old, segment):
            continue  # what lay behind the first damage was cut, and records were appended there
        yield f"segment {base} was written with damage at byte {segment.damaged_at}"


def _same_up_to_damage(old: Segment, new: Segment) -> bool:
    at = new.damaged_at
    return at == old.damaged_at and at is not None and new.data[: at + 12] == old.data[: at + 12]


def _differing(before: Log, after: Log, rules: Rules) -> Iterator[str]:
    cut_from = _cut_from(before, rules)
    end = before.end_offset if cut_from is None else min(cut_from, before.end_offset)
    for offset, record in after.records.items():
        old = before.records.get(offset)
        if rules.appends and offset >= end:
            continue
        if old is None:
            yield f"offset {offset} was not there before"
        elif old != record:
            yield f"offset {offset} reads otherwise: {_shown(old)} became {_shown(record)}"


def _shown(record: Record) -> str:
    value = record.value if record.value is None or len(record.value) < 40 else record.value[:40] + b"..."
    return f"({record.key!r}, {value!r}, {record.timestamp}, {record.producer})"


def _missing(before: Log, after: Log, rules: Rules) -> Iterator[str]:
    missing = [offset for offset in before.records if offset not in after.records]
    if not missing:
        return
    bound = bound_of(before, rules)
    last = _last_of_each_key(before, bound, rules)
    if rules.appends:
        last |= {r.key: o for o, r in after.records.items() if o >= before.end_offset and r.key is not None}
    cut_from = _cut_from(before, rules)
    started = min(after.segments, default=LONG_MAX)
    for offset in missing:
        if cut_from is not None and offset >= cut_from and rules.reported_cut:
            continue
        if rules.expires and _may_expire(before, after, offset, started, rules):
            continue
        if not rules.cleans:
            yield f"offset {offset} is gone"
            continue
        why = _why_not(before, offset, bound, last, rules)
        if why is not None:
            yield f"offset {offset} is gone: {why}"


def _last_of_each_key(before: Log, bound: int, rules: Rules) -> dict[bytes, int]:
    """The newest record that may supersede others, by key."""
    allowed = (COMMITTED, ABORTED, OPEN) if rules.doubtful else (COMMITTED,)
    return {
        record.key: offset
        for offset, record in sorted(before.records.items())
        if offset < bound
        and record.key is not None
        and not record.control
        and before.states.get(offset, COMMITTED) in allowed
    }


def _why_not(before: Log, offset: int, bound: int, last: dict[bytes, int], rules: Rules) -> str | None:
    """Why cleaning must not have taken a record; None where it might."""
    record, batch = before.records[offset], before.batch_of[offset]
    if offset >= bound:
        return f"at or above {bound}, up to where it is cleaned at most"
    if record.control:
        return None
    state = before.states.get(offset, COMMITTED)
    if state == ABORTED or (rules.doubtful and record.transactional):
        return None
    if record.key is None:
        return None if rules.drop_keyless else "it has no key, and nobody said --drop-keyless"
    if last.get(record.key, -1) > offset:
        return None
    if record.value is None:
        if batch.magic == 2 and batch.horizon is not None and 0 <= batch.horizon <= rules.now_ms:
            return None
        if rules.twice and batch.horizon is None and rules.delete_retention_ms <= 0:
            return None
        if batch.magic < 2 and _old_tombstone_may_go(before, offset, rules):
            return None
        return f"a tombstone with horizon {batch.horizon} at {rules.now_ms}"
    return f"the last committed value of key {record.key!r}"


def _old_tombstone_may_go(before: Log, offset: int, rules: Rules) -> bool:
    """By the files' times; which segment the clean part ends with is the checkpoint's to say."""
    own = before.segments[before.segment_of[offset]].modified_ms
    newest = max(segment.modified_ms for segment in before.segments.values())
    return own <= newest - rules.delete_retention_ms


def _cut_from(before: Log, rules: Rules) -> int | None:
    """From where on recovery may take records: what lies behind the first damage that is no older than the
    recovery point. A log whose end is below its start begins anew."""
    if not rules.cuts:
        return None
    if rules.log_start > before.end_offset:
        return 0
    bases = [*before.segments, LONG_MAX + 1]  # the active segment is always looked at
    for number, segment in enumerate(before.segments.values()):
        if segment.damaged_at is None or bases[number + 1] <= rules.recovery_point:
            continue
        sound = [batch for position, batch in segment.batches if position < segment.damaged_at]
        end = sound[-1].last_offset + 1 if sound else segment.base_offset
        return 0 if end < rules.log_start else end
    return None


def _may_expire(before: Log, after: Log, offset: int, started: int, rules: Rules) -> bool:
    """Retention takes whole segments from the front, never the active one, never what is not committed.

    A segment with offsets too far apart is split first: of it a part may go that is below the log start.
    """
    base = before.segment_of[offset]
    if before.segments[base].end_offset - base > INT_MAX and offset < rules.log_start:
        return True
    following = min((later for later in before.segments if later > base), default=None)
    if following is None and rules.appends:
        following = before.end_offset  # an open log rolls first
    if following is None or following > started:
        return False
    if rules.committed is not None and following > rules.committed:
        return False
    if following <= rules.log_start:
        return True
    segment = before.segments[base]
    if rules.retention_ms >= 0:
        newest = max((batch.max_timestamp for _, batch in segment.batches), default=-1)
        if (newest if newest > 0 else segment.modified_ms) < rules.now_ms - rules.retention_ms:
            return True
    remaining_bytes = sum(len(new_segment.data) for new_segment in after.segments.values())
    return rules.retention_bytes >= 0 and remaining_bytes >= rules.retention_bytes


def _damage_stays(before: Log, after: Log, rules: Rules) -> Iterator[str]:
    """Damage is reported and left, but for what recovery cuts off."""
    cut, bytes_after = _cut_from(before, rules), b"".join(after.logs().values())
    for segment in before.damaged:
        now = after.segments.get(segment.base_offset)
        if segment.data in bytes_after:
            continue
        if cut is not None and rules.reported_cut:
            continue
        if rules.expires and now is None and segment.base_offset < min(after.segments, default=LONG_MAX):
            continue
        yield f"segment {segment.base_offset} with damage at byte {segment.damaged_at} was changed"


def _end(before: Log, after: Log, rules: Rules) -> Iterator[str]:
    if rules.expires and not after.segments:
        return  # a log of which only the part below disorder is looked at
    if after.end_offset < before.end_offset and not (
        _cut_from(before, rules) is not None and rules.reported_cut
    ):
        yield f"the end went back from {before.end_offset} to {after.end_offset}"


def _horizons(before: Log, after: Log, rules: Rules) -> Iterator[str]:
    """A new stamp lies as far ahead as tombstones are to stay."""
    if not rules.settings_known:
        return
    due = min(rules.now_ms + rules.delete_retention_ms, LONG_MAX)
    for offset, batch in after.batch_of.items():
        old = before.batch_of.get(offset)
        if batch.horizon is None or old is None or old.horizon == batch.horizon:
            continue
        if old.horizon is not None and old.horizon >= 0:
            yield f"the horizon of offset {offset} moved from {old.horizon} to {batch.horizon}"
        elif batch.horizon < due:
            yield f"offset {offset} was stamped with {batch.horizon}, not {due}"


def _markers(before: Log, after: Log, rules: Rules) -> Iterator[str]:
    """A marker stays as long as a record of its transaction does: without it, its end is not known."""
    if rules.doubtful:
        return
    for offset in after.records:
        old, new = before.states.get(offset), after.states.get(offset)
        if offset in before.records and old != new:
            yield f"offset {offset} was {old or COMMITTED} and is {new or COMMITTED}"


def live_batches(before: Log, after: Log, rules: Rules, expiration_ms: int) -> Iterator[str]:
    """The last batch of a live producer stays, if need be without records: its sequence goes on from
    there."""
    last: dict[int, plain.Batch] = {}
    for batch in before.batches():
        known = last.get(batch.producer_id)
        if batch.producer_id >= 0 and not batch.attributes & plain.CONTROL:
            last[batch.producer_id] = batch
        elif known is not None and known.producer_epoch != batch.producer_epoch:
            del last[batch.producer_id]  # its marker began a new epoch, and with it a new sequence
    retained = {(batch.producer_id, batch.last_offset) for batch in after.batches()}
    for producer, batch in last.items():
        live = rules.now_ms - batch.max_timestamp < expiration_ms
        if live and batch.magic == 2 and (producer, batch.last_offset) not in retained:
            yield f"the last batch of live producer {producer}, up to {batch.last_offset}, is gone"


@dataclass(slots=True, kw_only=True)
class Verdict:
    """What came of a case: ``outcome`` is a column of the table."""

    outcome: str
    problems: list[str] = field(default_factory=list)
    summary: str = ""
