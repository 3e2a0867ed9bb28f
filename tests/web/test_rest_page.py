"""docs/rest.md: its curl lines work on a real server, and its tables name every route with its role."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from siltstone.commands.served import Served, ServeOptions
from siltstone.web import errors
from siltstone.web.openapi import FAMILIES
from siltstone.web.running import WebServer
from siltstone.web.site import routes_with_roles
from tests.support.pages import DOCS, sections
from tests.web.conftest import client_of

FAMILY_OF = {
    "Confluent v3": "/v3/clusters/{cluster_id}/",
    "Pulsar": "/admin/v2/persistent/{tenant}/{namespace}/{topic}/",
    "Siltstone": "/api/v1/",
}


def page() -> str:
    return (DOCS / "rest.md").read_text(encoding="utf-8")


def test_the_curl_lines_work(tmp_path: Path) -> None:
    (setup, *examples) = re.findall(r"```sh\n(.*?)```", page(), flags=re.DOTALL)
    properties = tmp_path / "server.properties"
    properties.write_text("log.cleaner.enable=false\n")
    with Served(ServeOptions(paths=(tmp_path / "logs",), properties=properties)) as served:
        server = WebServer(served, ["http://127.0.0.1:0"])
        served.cataloguer.refresh()
        server.start()
        try:
            for line in "".join(examples).splitlines():
                checked = line.replace("curl -s", "curl -sS --fail-with-body")
                script = f"set -e\nS={server.urls[0]}\n{setup}{checked}"
                completed = subprocess.run(["sh", "-c", script], check=False, capture_output=True, text=True)
                assert completed.returncode == 0, (line, completed.stdout, completed.stderr)
                served.opened_compactions().wait(60)
                served.cataloguer.refresh()
        finally:
            server.stop()
        assert [record.key for log in served.opened()["users"].logs() for record in log] == [b"anna"]
        assert served.describe("users").config["delete.retention.ms"] == "3600000"


def routes_on_the_page() -> Iterator[tuple[str, str, str]]:
    """(method, path, role) of each route in the tables; ``…`` stands for the path before it."""
    for family, text in sections("rest.md").items():
        for cells, role in re.findall(r"^\| ([A-Z]+.*?) \| (\w+) \|", text, flags=re.MULTILINE):
            methods: list[str] = []
            whole, follows_path = "", False
            for method, named in re.findall(r"([A-Z]+)(?=[ ,])|`([^`]+)`", cells):
                if method:
                    methods = [method] if follows_path else [*methods, method]
                elif named.startswith("…"):
                    # an action comes instead of another one
                    path = re.sub(r":[a-z-]+$", "", whole) if named[1] == ":" else whole
                    yield from ((verb, path + named[1:], role) for verb in methods)
                else:
                    whole = named if named.startswith("/") else FAMILY_OF[family] + named
                    yield from ((verb, whole, role) for verb in methods)
                follows_path = not method


def test_every_route_is_on_the_page_with_its_role(served: Served) -> None:
    routes = {
        (method, re.sub(r":\w+\}", "}", path), role.name.lower())
        for path, methods, role in routes_with_roles(client_of(served).app._app)  # type: ignore[attr-defined]
        if path.startswith((*FAMILIES, "/v3/clusters")) and "non-persistent" not in path and role is not None
        for method in methods
    }
    assert set(routes_on_the_page()) == routes


def test_the_numbers_of_errors_are_on_the_page() -> None:
    known = {str(number) for _, _, number in errors._STATUSES} | set(map(str, errors._CODES.values()))
    shown = set(re.findall(r"\b\d{3,5}\b", "".join(re.findall(r"^\| \d{3}.*$", page(), flags=re.MULTILINE))))
    assert known <= shown
