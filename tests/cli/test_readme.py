"""The README's example of topics and records, run as it stands there."""

from __future__ import annotations

from pathlib import Path

from tests.support.examples import printed, steps

README = Path(__file__).resolve().parents[2] / "README.md"


def test_the_example_is_what_happens(tmp_path: Path) -> None:
    section = README.read_text(encoding="utf-8").split("\n## Topics and records\n")[1]
    found = steps(section)
    assert len(found) == 4
    for command, expected in found:
        assert printed(command, tmp_path) == expected, command
