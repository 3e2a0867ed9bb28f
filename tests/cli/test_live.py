"""``siltstone compact`` on the command line, with a cluster in memory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from siltstone.cli import live as cli
from siltstone.commands import live
from tests.cli.test_json_page import hold_to_page
from tests.commands.test_live import OWN, FakeAdmin
from tests.support.command_line import Command


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> FakeAdmin:
    """The cluster that the command finds."""
    admin = FakeAdmin()
    monkeypatch.setattr(cli, "_admin", lambda flags, server: admin)
    monkeypatch.setattr(live, "GRACE_SECONDS", 0.0)
    return admin


@pytest.mark.parametrize(
    "flags",
    [
        (),
        ("--topic", "t"),
        ("--bootstrap-server", "there:1"),
        ("--restore", "--dry-run"),
        ("--restore", "--topic", "t"),
        ("--bootstrap-server", "there:1", "--topic", "t", "--timeout", "0"),
        ("--bootstrap-server", "there:1", "--topic", "t", "--timeout", "nan"),
    ],
)
def test_wrong_usage_is_refused(siltstone: Command, admin: FakeAdmin, flags: tuple[str, ...]) -> None:
    assert siltstone("compact", *flags).status == 2
    assert not admin.calls


def test_the_documents_hold_to_the_page(siltstone: Command, admin: FakeAdmin, tmp_path: Path) -> None:
    journal = tmp_path / "state" / "journal"
    flags = ("--bootstrap-server", "there:1", "--topic", "t", "--journal", journal, "--json")
    dry = siltstone("compact", *flags, "--dry-run")
    assert (dry.status, admin.altered) == (0, [])
    entry = live.JournalEntry(
        version=1,
        bootstrap_server="there:1",
        cluster_id="cluster",
        topic="t",
        topic_id="first",
        changes=(live.SettingChange(name="segment.ms", before="1", ours="2"),),
    )
    journal.parent.mkdir()
    journal.write_text(json.dumps(cli.output.plain(entry)))
    restored = siltstone("compact", "--restore", "--journal", journal, "--json")
    assert "segment.ms was changed meanwhile and stays 5000" in restored.err
    assert siltstone("compact", "--restore", "--journal", journal).lines == ["nothing to restore"]
    log = tmp_path / "logs" / "t-0"
    log.mkdir(parents=True)
    (log / f"{0:020}.log").touch()
    compacted = siltstone("compact", *flags, "--log-dir", log.parent)
    assert (compacted.status, admin.own) == (0, OWN)
    hold_to_page("compact", [json.loads(completed.out) for completed in (dry, restored, compacted)])


def test_a_dry_run_shows_the_settings_and_what_is_to_clean(
    siltstone: Command, admin: FakeAdmin, tmp_path: Path
) -> None:
    flags = ("--bootstrap-server", "there:1", "--topic", "t", "--journal", tmp_path / "journal")
    completed = siltstone("compact", *flags, "--dry-run")
    assert "would set segment.ms=1000 for a time (own value: 5000)" in completed.out.decode()
    assert "to clean" in completed.out.decode()
