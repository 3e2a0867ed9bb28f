"""Quotas as they are kept: checked, altered, matched, and found again after a restart."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from siltstone.base.errors import CorruptFileError, InvalidQuotaError, PolicyViolationError, StorageError
from siltstone.base.records.metadata import QuotaEntity
from siltstone.runtime import quotas
from siltstone.runtime.quotas import (
    EntityMatch,
    Quotas,
    altered_values,
    checked_entity,
    from_entries,
    matching,
    ordered,
    to_entries,
    with_values,
)
from siltstone.runtime.topics import TOPICS_FILE, load_registry
from tests.support.errors import raises_error
from tests.support.log.managed import failing, opened

ADA: QuotaEntity = (("user", "ada"),)
DEFAULT: QuotaEntity = (("client-id", None), ("user", "ada"))
ADDRESS: QuotaEntity = (("ip", "192.0.2.1"),)
SOME: Quotas = {
    ADA: {"producer_byte_rate": 1000.0, "request_percentage": 0.5},
    DEFAULT: {"consumer_byte_rate": 1e15},
    ADDRESS: {"connection_creation_rate": 3.0},
}


@pytest.mark.parametrize(
    "parts",
    [
        [],
        [("group", "g")],
        [("", "x")],
        [("user", "")],
        [("ip", "")],
        [("ip", "192.0.2.300")],
        [("ip", "localhost")],
        [("ip", "192.0.2.1"), ("user", "a")],
        [("ip", None), ("client-id", None)],
        [("user", "x" * 1025)],
    ],
)
def test_entities_that_cannot_have_quotas_are_refused(parts: list[tuple[str, str | None]]) -> None:
    with pytest.raises(InvalidQuotaError):
        checked_entity(parts)


def test_an_entity_is_the_same_in_any_order() -> None:
    assert checked_entity([("user", "a"), ("client-id", None)]) == (("client-id", None), ("user", "a"))
    assert checked_entity([("ip", "2001:db8::1")]) == (("ip", "2001:db8::1"),)


@pytest.mark.parametrize(
    ("entity", "name", "value"),
    [
        (ADA, "no.such", 1.0),
        (ADA, "connection_creation_rate", 1.0),
        (ADDRESS, "producer_byte_rate", 1.0),
        (ADA, "producer_byte_rate", 0.0),
        (ADA, "producer_byte_rate", -1.0),
        (ADA, "producer_byte_rate", 1.5),
        (ADA, "producer_byte_rate", 1e19),
        (ADA, "producer_byte_rate", math.inf),
        (ADA, "producer_byte_rate", math.nan),
        (ADA, "request_percentage", math.nan),
        (ADA, "request_percentage", math.inf),
        (ADA, "controller_mutation_rate", -math.inf),
        (ADDRESS, "connection_creation_rate", 3e9),
    ],
)
def test_values_that_a_quota_cannot_have_are_refused(entity: QuotaEntity, name: str, value: float) -> None:
    with pytest.raises(InvalidQuotaError):
        altered_values(SOME, entity, {name: value})


def test_values_are_set_and_removed_one_by_one() -> None:
    after = altered_values(
        SOME, ADA, {"consumer_byte_rate": 7.0, "producer_byte_rate": None, "no.such": None}
    )
    assert after == {"request_percentage": 0.5, "consumer_byte_rate": 7.0}
    assert altered_values({}, ADA, {"producer_byte_rate": 1.0000001}) == {"producer_byte_rate": 1.0000001}
    assert with_values(SOME, ADA, {}) == {DEFAULT: SOME[DEFAULT], ADDRESS: SOME[ADDRESS]}
    assert with_values(SOME, ADA, after)[ADA] == after


def test_the_number_of_entities_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotas, "ENTITIES_MAX", 3)
    with pytest.raises(PolicyViolationError):
        altered_values(SOME, (("user", "new"),), {"producer_byte_rate": 1.0})
    assert altered_values(SOME, ADA, {"producer_byte_rate": 2.0})["producer_byte_rate"] == 2.0
    assert altered_values(SOME, (("user", "new"),), {"producer_byte_rate": None}) == {}


def test_only_strict_filters_leave_out_entities_with_other_parts() -> None:
    user, other = EntityMatch(kind="user", name="ada"), EntityMatch(kind="user", is_any=True)
    assert list(matching(SOME, [user], strict=False)) == [DEFAULT, ADA]
    assert list(matching(SOME, [user], strict=True)) == [ADA]
    assert list(matching(SOME, [other, EntityMatch(kind="client-id")], strict=True)) == [DEFAULT]
    assert list(matching(SOME, [EntityMatch(kind="user")], strict=False)) == []
    assert len(matching(SOME, [], strict=False)) == 3
    assert matching(SOME, [], strict=True) == {}


def test_quotas_are_listed_in_order() -> None:
    assert list(ordered(SOME)[ADA]) == ["request_percentage", "producer_byte_rate"]
    assert list(ordered({(("user", "b"),): {}, (("user", None),): {}})) == [
        (("user", None),),
        (("user", "b"),),
    ]
    assert from_entries(to_entries(SOME)) == SOME


# Kept


def test_quotas_survive_a_restart(tmp_path: Path) -> None:
    both = tmp_path / "a", tmp_path / "b"
    with opened(*both) as manager:
        assert manager.topics.quotas == {}
        assert b"quotas" not in load_registry(both)[0].encode()
        manager.topics.create("events")
        manager.topics.replace_quotas(SOME)
        assert manager.topics.quotas == SOME
    (tmp_path / "b" / TOPICS_FILE).unlink()
    with opened(*both) as manager:
        assert manager.topics.quotas == SOME
        manager.topics.create("later")
        assert manager.topics.quotas == SOME
        manager.topics.replace_quotas({})
    with opened(*both) as manager:
        assert manager.topics.quotas == {}


def test_a_change_that_cannot_be_written_is_none(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        manager.topics.replace_quotas(SOME)
        with failing(tmp_path), raises_error(StorageError):
            manager.topics.replace_quotas({})
    with opened(tmp_path) as manager:
        assert manager.topics.quotas == SOME


@pytest.mark.parametrize("value", ['"1"', "null", "{}"])
def test_a_damaged_file_is_named(tmp_path: Path, value: str) -> None:
    with opened(tmp_path) as manager:
        manager.topics.replace_quotas({ADA: {"producer_byte_rate": 1234.0}})
    path = tmp_path / TOPICS_FILE
    path.write_text(path.read_text("utf-8").replace("1234.0", value), "utf-8")
    with raises_error(CorruptFileError, path=path):
        opened(tmp_path)
