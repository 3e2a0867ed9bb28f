"""The broker's settings of a server: at once, or after a restart; always in the file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from siltstone.base import files
from siltstone.base.errors import ChangedMeanwhileError, InvalidConfigError, NotAllowedError, UsageError
from siltstone.commands import broker_settings
from siltstone.commands.changes import Actor
from siltstone.commands.served import Served, ServeOptions

ADA = Actor(user="ada", address="127.0.0.1")
TEXT = "# the cleaner\nlog.cleaner.enable = false\n\n# twice\nlog.cleaner.threads=1\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "server.properties"
    path.write_text(TEXT, "utf-8")
    return path


@pytest.fixture
def served(tmp_path: Path, path: Path) -> Iterator[Served]:
    with Served(ServeOptions(paths=(tmp_path / "logs",), properties=path)) as served:
        yield served


def test_a_dynamic_setting_applies_at_once_and_stands_in_the_file(served: Served, path: Path) -> None:
    change, waiting = broker_settings.alter_static(served, ADA, {"log.cleaner.backoff.ms": "5"})
    assert waiting == []
    assert change.after["log.cleaner.backoff.ms"] == "5"
    assert served.opened().config.integer("log.cleaner.backoff.ms") == 5
    assert path.read_text("utf-8") == TEXT + "log.cleaner.backoff.ms=5\n"


def test_a_static_setting_waits_for_the_restart(served: Served, path: Path) -> None:
    _, waiting = broker_settings.alter_static(served, ADA, {"log.cleaner.enable": "true"})
    assert waiting == ["log.cleaner.enable"]
    assert not served.opened().config.flag("log.cleaner.enable")
    assert broker_settings.pending(served) == {"log.cleaner.enable": "true"}
    assert "# the cleaner\nlog.cleaner.enable=true\n" in path.read_text("utf-8")
    broker_settings.restart(served, ADA)
    assert served.restart_asked.is_set()
    served.close()
    with Served(served.options) as again:
        assert again.opened().config.flag("log.cleaner.enable")
        assert broker_settings.pending(again) == {}
        newest = again.opened_changes().newest()
        assert [(change.action, change.outcome) for change in newest] == [
            ("restart", "done"),
            ("alter-broker", "done"),
        ]
        assert newest[1].before == {"log.cleaner.enable": "false"}
        assert newest[1].after == {"log.cleaner.enable": "true"}


@pytest.mark.parametrize(
    ("set_to", "remove"),
    [
        ({"log.cleaner.threads": "-1"}, []),
        ({"no.such.setting": "1"}, []),
        ({"retention.ms": "1"}, []),
        ({}, ["log.cleaner.backoff.ms"]),
        ({"log.cleaner.min.compaction.lag.ms": "9", "log.cleaner.max.compaction.lag.ms": "8"}, []),
    ],
)
def test_a_bad_change_changes_nothing(
    served: Served, path: Path, set_to: dict[str, str], remove: list[str]
) -> None:
    with pytest.raises(InvalidConfigError):
        broker_settings.alter_static(served, ADA, set_to, remove)
    assert path.read_text("utf-8") == TEXT
    assert served.opened_changes().newest() == []


def test_a_password_that_only_kafka_knows_is_not_removed_and_not_recorded(served: Served, path: Path) -> None:
    """The audit log would show its value to all who may read."""
    path.write_text(f"{TEXT}ssl.keystore.password=hunter2\n", "utf-8")
    with pytest.raises(InvalidConfigError, match="unknown setting"):
        broker_settings.alter_static(served, ADA, {}, ["ssl.keystore.password"])
    assert "hunter2" in path.read_text("utf-8")
    broker_settings.alter_static(served, ADA, {"log.cleaner.backoff.ms": "5"}, ["log.cleaner.threads"])
    assert "hunter2" not in served.opened_changes().path.read_text("utf-8")


def test_what_another_user_has_changed_is_not_overwritten(served: Served, path: Path) -> None:
    tag = broker_settings.broker_etag(served)
    broker_settings.alter_static(served, ADA, {"log.cleaner.threads": "2"}, if_match=tag)
    with pytest.raises(ChangedMeanwhileError):
        broker_settings.alter_static(served, ADA, {"log.cleaner.threads": "3"}, if_match=tag)
    assert served.opened().config.integer("log.cleaner.threads") == 2


def test_a_crash_before_the_file_is_replaced_leaves_the_old_one(
    served: Served, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(source: object, target: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(files, "rename", crash)
    with pytest.raises(KeyboardInterrupt):
        broker_settings.alter_static(served, ADA, {"log.cleaner.threads": "2"})
    monkeypatch.undo()
    assert path.read_text("utf-8") == TEXT
    assert served.opened().config.integer("log.cleaner.threads") == 1
    assert [change.outcome for change in served.opened_changes().newest()] == ["interrupted"]


def test_without_a_file_nothing_is_changed(tmp_path: Path) -> None:
    with (
        Served(ServeOptions(paths=(tmp_path / "logs",))) as served,
        pytest.raises(UsageError, match="without a file"),
    ):
        broker_settings.alter_static(served, ADA, {"log.cleaner.threads": "2"})


def test_look_mode_changes_nothing(served: Served, path: Path) -> None:
    with (
        Served(ServeOptions(paths=served.options.paths, properties=path, is_look=True)) as looking,
        pytest.raises(NotAllowedError),
    ):
        broker_settings.alter_static(looking, ADA, {"log.cleaner.threads": "2"})


def test_what_is_set_at_run_time_counts_before_the_file(served: Served, path: Path) -> None:
    change = broker_settings.alter_dynamic(served, ADA, {"log.cleaner.backoff.ms": "7"})
    assert (change.before, change.after) == ({}, {"log.cleaner.backoff.ms": "7"})
    broker_settings.alter_static(served, ADA, {"log.cleaner.backoff.ms": "5"})
    config = served.opened().config
    assert config.integer("log.cleaner.backoff.ms") == 7
    rows, _ = broker_settings.broker_rows(served)
    row = next(row for row in rows if row.name == "log.cleaner.backoff.ms")
    assert (row.value, row.source) == ("7", "DYNAMIC_BROKER_CONFIG")
    broker_settings.alter_dynamic(served, ADA, {}, ["log.cleaner.backoff.ms"])
    assert served.opened().config.integer("log.cleaner.backoff.ms") == 5
    assert "log.cleaner.backoff.ms=5" in path.read_text("utf-8")
