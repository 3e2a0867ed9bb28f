"""docs/monitoring.md has every metric, log lines as the code writes them, and the keys of the history."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import siltstone as st
from siltstone.broker.measuring import METRICS
from siltstone.compaction.report import Cleaning, LogResult
from tests.support.command_line import Command
from tests.support.pages import named_in_rows, sections

PACKAGE = Path(st.__file__).parent


def test_every_metric_is_on_the_page(siltstone: Command, logs: Path) -> None:
    siltstone("produce", "--dir", logs, "-t", "orders", "-p", 0, stdin=b"a\n")
    assert siltstone("compact-topic", "--dir", logs, "-t", "orders").status == 0
    with st.open(logs, mode="a") as manager:
        st.start_cleaner(manager)
        st.start_compaction(manager)
        names = {sample.name for sample in manager.samples()}
    assert len(names) > 20
    described = named_in_rows(sections("monitoring.md")["Metrics"])
    assert sorted(described) == sorted(names | set(METRICS))


def test_the_log_lines_are_the_codes_own() -> None:
    texts = [path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")]
    constants = [
        node.value
        for text in texts
        if "getLogger" in text
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    rows = re.findall(
        r"^\| (?:critical|error|warning|info) \| (.*?) \|", sections("monitoring.md")["Log lines"], re.M
    )
    lines = [line for row in rows for line in re.findall(r"`([^`]+)`", row)]
    assert len(lines) > 8
    for line in lines:
        for part in re.split(r"…|T-N", line):
            assert any(part in constant for constant in constants), line


def test_the_keys_of_the_history_are_described() -> None:
    result = LogResult(topic="users", partition=0, directory="/data/users-0")
    keys = set(Cleaning(began_ms=0, result=result).to_json())
    history = named_in_rows(sections("monitoring.md")["The history of cleanings"])
    log = {
        key.partition(".")[0].removesuffix("[]")
        for key in named_in_rows(sections("json.md", "###")["A log of clean"])
    }
    assert keys <= {*history, *log} - {"directory", "settings"}
