"""docs/recordings.md is what the commands print."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from tests.support.command_line import Command

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def recordings() -> ModuleType:
    """The script that makes the page."""
    spec = importlib.util.spec_from_file_location("recordings", ROOT / "scripts" / "recordings.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def recorded() -> str:
    return (ROOT / "docs" / "recordings.md").read_text(encoding="utf-8")


def test_the_recordings_are_what_the_commands_print(
    recordings: ModuleType, siltstone: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(command: list[str], *, cwd: Path, env: dict[str, str], **_: object) -> SimpleNamespace:
        assert command[1:3] == ["-m", "siltstone"]
        with monkeypatch.context() as patched:
            patched.chdir(cwd)
            patched.setenv("COLUMNS", env["COLUMNS"])
            completed = siltstone(*command[3:])
        return SimpleNamespace(
            returncode=completed.status, stdout=completed.out.decode(), stderr=completed.err
        )

    in_this_process = SimpleNamespace(run=run, DEVNULL=subprocess.DEVNULL)
    monkeypatch.setattr(recordings, "subprocess", in_this_process)
    assert recordings.page() == recorded()


@pytest.mark.long  # the same in processes of their own
def test_the_recordings_are_what_processes_print(recordings: ModuleType) -> None:
    assert recordings.page() == recorded()
