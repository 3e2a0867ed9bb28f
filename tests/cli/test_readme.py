"""The README's example of topics and records, run as it stands there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command_line import Command
from tests.support.examples import printed, printed_here, steps

README = Path(__file__).resolve().parents[2] / "README.md"
SECTION = README.read_text(encoding="utf-8").split("\n## Topics and records\n")[1]


def test_the_example_is_what_happens(
    siltstone: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    commands = steps(SECTION)
    assert len(commands) == 4
    for command, expected in commands:
        assert printed_here(command, siltstone) == expected, command


@pytest.mark.long  # the same in processes of their own
def test_the_example_is_what_happens_in_a_shell(tmp_path: Path) -> None:
    for command, expected in steps(SECTION):
        assert printed(command, tmp_path) == expected, command
