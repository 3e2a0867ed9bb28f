"""What an append answers: of a batch that comes again, of bytes that are left out, of strange producers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from siltstone.base.clock import ManualClock
from siltstone.base.config import LogConfig
from siltstone.base.errors import (
    CorruptMessageError,
    InvalidProducerEpochError,
    LogError,
    UnreadableBatchError,
)
from siltstone.base.records.layout import Bytes
from siltstone.log.partition import PartitionLog, open_partition
from siltstone.log.validation import Origin
from tests.support.errors import raises_error
from tests.support.log.batches import TIME, array, edited, sent

NOW = TIME + 60_000


def opened(path: Path, clean: bool = False, **config: object) -> PartitionLog:
    settings = LogConfig(**config)  # type: ignore[arg-type]
    return open_partition(path / "topic-0", settings, ManualClock(NOW), had_clean_shutdown=clean)


def numbered(sequence: int, count: int = 1, epoch: int = 0, first_time: int = TIME) -> Bytes:
    return sent(count, first_time=first_time, producer_id=7, producer_epoch=epoch, base_sequence=sequence)


@pytest.mark.parametrize("closed", [False, True])
def test_a_duplicate_is_answered_with_the_stored_batchs_largest_time(tmp_path: Path, closed: bool) -> None:
    """As Kafka answers a duplicate, whatever the topic's timestamp type; a snapshot has the last batch."""
    log = opened(tmp_path)
    assert log.append(numbered(0, 3)).log_append_ms == -1
    assert log.append(numbered(3, 2, first_time=TIME + 50)).log_append_ms == -1
    if closed:
        log.close()
        log = opened(tmp_path, clean=True)
    else:
        again = log.append(numbered(0, 3, first_time=TIME + 9))
        assert again == (0, 2, TIME + 2, True, 0)
    assert log.append(numbered(3, 2, first_time=5)) == (3, 4, TIME + 51, True, 0)
    assert log.log_end_offset == 5


def test_a_duplicate_under_log_append_time_has_the_first_time(tmp_path: Path) -> None:
    clock = ManualClock(NOW)
    config = LogConfig(message_timestamp_type="LogAppendTime")
    log = open_partition(tmp_path / "topic-0", config, clock)
    assert log.append(numbered(0)).log_append_ms == NOW
    clock.advance(1000)
    assert log.append(numbered(0)) == (0, 0, NOW, True, 0)
    assert log.append(numbered(1)).log_append_ms == NOW + 1000


def test_bytes_behind_a_batch_are_counted_and_not_stored(tmp_path: Path) -> None:
    log = opened(tmp_path)
    data = numbered(0, 3).tobytes()
    assert log.append(bytearray(data + data[:-1])).trailing_bytes == len(data) - 1
    assert log.size == len(data)
    again = log.append(bytearray(data + b"\1\2"))
    assert (again.is_duplicate, again.first_offset, again.trailing_bytes) == (True, 0, 2)
    assert log.append(numbered(3)).trailing_bytes == 0


def test_a_producer_without_an_epoch_may_send_any_sequence_once(tmp_path: Path) -> None:
    """Any sequence is accepted, but no batch twice; a producer that had an epoch needs one from then on."""
    log = opened(tmp_path)
    for number, sequence in enumerate((5, 9, 2)):
        assert log.append(numbered(sequence, epoch=-1)).first_offset == number
    assert log.append(numbered(9, epoch=-1)).is_duplicate
    with raises_error(InvalidProducerEpochError, about="epoch -2", advice="new instance"):
        log.append(numbered(3, epoch=-2))
    log.close()
    log = opened(tmp_path, clean=True)
    assert log.append(numbered(2, epoch=-1)).is_duplicate
    assert log.append(numbered(4, epoch=0)).first_offset == 3
    with raises_error(InvalidProducerEpochError, about="epoch -1"):
        log.append(numbered(5, epoch=-1))


def test_a_replica_takes_no_unknown_codec(tmp_path: Path) -> None:
    """Recovery, the cleaner and readers could not read such a batch; Kafka's follower fails on it, too."""
    log = opened(tmp_path)
    good, bad = edited(sent(1), 0, 0, 8), edited(edited(sent(1), 21, 5, 2), 0, 1, 8)
    with raises_error(UnreadableBatchError, position=len(good), about="codec"):
        log.append(np.concatenate((good, bad)), origin=Origin.REPLICATION)
    assert log.log_end_offset == 0
    assert log.append(array(good.tobytes()), origin=Origin.REPLICATION).last_offset == 0


@pytest.mark.parametrize("origin", Origin)
def test_a_log_whose_offsets_are_used_up_takes_no_more(tmp_path: Path, origin: Origin) -> None:
    """A forged log start above the end makes the log begin anew there, as in Kafka (``LogLoader``)."""
    start = 2**63 - 1
    log = open_partition(tmp_path / "topic-0", LogConfig(), ManualClock(NOW), log_start_offset=start)
    assert log.log_end_offset == start
    with raises_error(LogError, about=str(start), advice="partition"):
        log.append(edited(sent(1), 0, start, 8, sealed=False), origin=origin)
    assert log.log_end_offset == start
    log.close()


def test_a_replicated_batch_that_ends_at_the_largest_offset_is_refused(tmp_path: Path) -> None:
    log = opened(tmp_path)
    with raises_error(CorruptMessageError, position=0, about="base offset"):
        log.append(edited(sent(1), 0, 2**63 - 1, 8, sealed=False), origin=Origin.REPLICATION)
    assert log.log_end_offset == 0
    log.close()
