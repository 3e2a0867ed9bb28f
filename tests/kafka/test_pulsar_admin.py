"""Pulsar's own administration client, from Maven, on `siltstone serve`: what its users do with compaction."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from siltstone.commands.served import Served, ServeOptions
from siltstone.web.running import WebServer
from tests.support import pulsar
from tests.support.kafka.jars import JVM_FLAGS, java, pulsar_libs

pytestmark = pytest.mark.kafka

HERE = Path(pulsar.__file__).parent
EXPECTED = """
topic without: null
topic set: done
topic get: 104857600
topic applied: 104857600
topic removed: done
topic after: null
namespace without: null
namespace set: done
namespace get: 7
topic applies it: 7
namespace removed: done
topic applies none: 0
status before: NOT_RUN
triggered: done
status after: SUCCESS ''
status of a partition: SUCCESS
partitions: 2
stored: true
backlog: 0
succeeded: true
failed: 0
last entry: 3
ledger entries: 2
ledger: true
cursor: 3
unknown topic: NotFoundException 404
status of unknown: NotFoundException 404
threshold of unknown: NotFoundException 404
not persistent: NotAllowedException 405
negative: PreconditionFailedException 412
negative namespace: PreconditionFailedException 412
bad namespace: PreconditionFailedException 412
bad topic: PreconditionFailedException 412
"""


def test_pulsars_client_administers_compaction(tmp_path: Path) -> None:
    libs = pulsar_libs()
    assert shutil.which("javac"), "the program is compiled when it is run: install a JDK"
    properties = tmp_path / "server.properties"
    properties.write_text("log.cleaner.enable=false\n")
    with Served(ServeOptions(paths=(tmp_path / "logs",), properties=properties)) as served:
        served.opened().topics.create("users", 2, {})
        for number in range(4):
            served.opened().send("users", b"%d" % number, key=b"k%d" % (number % 2), partition=0)
        served.cataloguer.refresh()
        served.start()
        server = WebServer(served, ["http://127.0.0.1:0"])
        server.start()
        try:
            command = [
                java(),
                "-Xmx256m",
                *JVM_FLAGS,
                "-cp",
                f"{libs}/*",
                str(HERE / "Admin.java"),
                *server.urls,
            ]
            completed = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
        finally:
            server.stop()
        assert completed.returncode == 0, (completed.stdout, completed.stderr)
        assert completed.stdout.split("\n") == EXPECTED.lstrip().split("\n")
        actions = [change.action for change in served.opened_changes().newest()]
        assert actions == ["compact", *["alter-namespace"] * 2, *["alter"] * 2]
