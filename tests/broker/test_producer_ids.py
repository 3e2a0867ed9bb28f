"""Producer ids: each is given once, whatever happens to the process and to its file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from siltstone.base.errors import StorageError
from siltstone.broker.producer_ids import BLOCK, BROKER_FILE, PRODUCER_ID_END, ProducerIds
from siltstone.runtime.topics import Topics
from tests.support.errors import raises_error
from tests.support.log.batches import sent
from tests.support.log.managed import NOW, failing, opened


def first_id(*paths: Path) -> int:
    """The first id that a broker over these directories gives."""
    with opened(*paths) as logs:
        return ProducerIds(logs).take()


def test_a_block_is_durable_before_its_first_id(tmp_path: Path) -> None:
    with opened(tmp_path) as logs:
        ids = ProducerIds(logs)
        assert ids.take_at_hand() is None
        assert not (tmp_path / BROKER_FILE).exists()
        assert ids.take() == 0
        assert json.loads((tmp_path / BROKER_FILE).read_text()) == {"version": 1, "next_producer_id": BLOCK}
        assert [ids.take_at_hand() for _ in range(BLOCK)] == [*range(1, BLOCK), None]
        assert ids.take() == BLOCK
    assert first_id(tmp_path) == 2 * BLOCK


def test_no_id_is_given_while_the_file_cannot_be_written(tmp_path: Path) -> None:
    with opened(tmp_path) as logs:
        ids = ProducerIds(logs)
        with failing(tmp_path, error=28), raises_error(StorageError, path=tmp_path, advice="space"):
            ids.take()
        assert ids.take_at_hand() is None
        assert ids.take() == 0


def test_a_directory_that_fails_goes_offline_and_others_go_on(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    with opened(one, other) as logs:
        ids = ProducerIds(logs)
        with failing(one):
            assert ids.take() == 0
        assert [served.path for served in logs.serving()] == [other]
        with failing(other), raises_error(StorageError):
            for _ in range(BLOCK):
                ids.take()
    # The directory that failed has no copy, or an older one.
    assert first_id(one, other) == BLOCK


def test_ids_in_logs_are_not_given_again(tmp_path: Path) -> None:
    with opened(tmp_path) as logs:
        for topic, producer_id in (("a", 5), ("b", 41_234), ("c", 7)):
            logs.topics.create(topic)
            logs[topic, 0].append(
                sent(producer_id=producer_id, producer_epoch=0, base_sequence=0, first_time=NOW)
            )
    assert first_id(tmp_path) == 41_235


MADE_UP = [PRODUCER_ID_END - 1500, PRODUCER_ID_END - 1, PRODUCER_ID_END, (1 << 63) - 1]


@pytest.mark.parametrize("made_up", MADE_UP)
@pytest.mark.parametrize("was_given", [False, True])
def test_an_id_that_a_client_made_up_uses_up_nothing(tmp_path: Path, made_up: int, was_given: bool) -> None:
    if was_given:
        assert first_id(tmp_path) == 0
    with opened(tmp_path) as logs:
        logs.topics.create("a")
        for producer_id in (3, made_up):
            logs["a", 0].append(
                sent(producer_id=producer_id, producer_epoch=0, base_sequence=0, first_time=NOW)
            )
    assert first_id(tmp_path) == (BLOCK if was_given else 4)


@pytest.mark.parametrize("is_damaged", [False, True])
def test_ids_that_were_given_after_a_damage_count_again(tmp_path: Path, is_damaged: bool) -> None:
    skipped = 1 << 40
    with opened(tmp_path) as logs:
        logs.topics.create("a")
        logs["a", 0].append(sent(producer_id=2 * skipped, producer_epoch=0, base_sequence=0, first_time=NOW))
    if is_damaged:
        (tmp_path / BROKER_FILE).write_bytes(b"")
    assert first_id(tmp_path) == 2 * skipped + 1 + is_damaged * skipped


def test_ids_begin_above_those_of_the_brokers_metadata_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for allocated_end, first in ((7000, 7000), (PRODUCER_ID_END + 1, 0), (-5, 0)):
        monkeypatch.setattr(Topics, "allocated_producer_ids_end", allocated_end)
        assert first_id(tmp_path / str(allocated_end)) == first


DAMAGED = {
    "empty": b"",
    "half": b'{"version": 1, "next_pro',
    "not JSON": b"\xff\xfe\x00",
    "another version": b'{"version": 2, "next_producer_id": 9}',
    "no number": b'{"version": 1, "next_producer_id": "9"}',
    "negative": b'{"version": 1, "next_producer_id": -9}',
    "huge": b'{"version": 1, "next_producer_id": 9223372036854775807}',
    "beyond int64": b'{"version": 1, "next_producer_id": 1' + b"0" * 400 + b"}",
    "deep": b"[" * 60_000,
    "large": b" " * (1 << 20),
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_file_skips_ids(tmp_path: Path, content: bytes) -> None:
    before = first_id(tmp_path)
    (tmp_path / BROKER_FILE).write_bytes(content)
    first = first_id(tmp_path)
    assert before + (1 << 40) <= first < PRODUCER_ID_END // 2
    assert first_id(tmp_path) == first + BLOCK  # the file is whole again


def test_the_largest_of_several_copies_counts(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    assert first_id(one, other) == 0
    old = (one / BROKER_FILE).read_bytes()
    assert first_id(one, other) == BLOCK
    (one / BROKER_FILE).write_bytes(old)
    assert first_id(one, other) == 2 * BLOCK
    (other / BROKER_FILE).unlink()
    assert first_id(one, other) == 3 * BLOCK


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("precious")
    first_id(tmp_path / "logs")
    (tmp_path / "logs" / BROKER_FILE).unlink()
    (tmp_path / "logs" / BROKER_FILE).symlink_to(elsewhere)
    first_id(tmp_path / "logs")
    assert elsewhere.read_text() == "precious"


def test_the_last_id_is_given_and_none_after_it(tmp_path: Path) -> None:
    first_id(tmp_path)
    last_block = PRODUCER_ID_END - BLOCK
    tmp_path.joinpath(BROKER_FILE).write_text(f'{{"version": 1, "next_producer_id": {last_block}}}')
    with opened(tmp_path) as logs:
        ids = ProducerIds(logs)
        assert [ids.take() for _ in range(BLOCK)][-1] == PRODUCER_ID_END - 1
        with raises_error(StorageError, path=BROKER_FILE):
            ids.take()
