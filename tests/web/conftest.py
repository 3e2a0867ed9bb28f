"""A server's directories, open or in look mode, and clients that ask its site."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from fastapi import FastAPI
from starlette.routing import BaseRoute
from starlette.testclient import TestClient

from siltstone.commands.served import Served, ServeOptions
from siltstone.web import openapi
from siltstone.web.guards import Rules
from siltstone.web.rest.bodies import JsonObject
from siltstone.web.running import rules_of
from siltstone.web.site import build_site

BASE = "http://localhost:8082"


class _Loop:
    """The event loop that answers requests: a server has one, a TestClient starts one for each request."""

    portal: BlockingPortal | None = None


@pytest.fixture(scope="package", autouse=True)
def _one_loop() -> Iterator[None]:
    with start_blocking_portal() as _Loop.portal:
        yield
    _Loop.portal = None


@pytest.fixture(scope="package", autouse=True)
def _one_document() -> Iterator[None]:
    """``/openapi.json`` is made once of the same routes, and not for each site: it takes 0.3 s. The
    routes are kept with it: an id is given again once its object is gone."""
    descriptions: dict[tuple[int, ...], tuple[list[BaseRoute], JsonObject]] = {}
    describe = openapi._described

    def described(app: FastAPI) -> JsonObject:
        routes = tuple(map(id, app.routes))
        if routes not in descriptions:
            descriptions[routes] = (list(app.routes), describe(app))
        return copy.deepcopy(descriptions[routes][1])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(openapi, "_described", described)
        yield


def client_of(served: Served, rules: Rules | None = None, **options: object) -> TestClient:
    """A client of the site over ``served``, from this machine unless ``client`` says otherwise."""
    rules = rules or rules_of(served.config, [], is_look=served.is_look)
    options = {"base_url": BASE, "client": ("127.0.0.1", 50000), "raise_server_exceptions": False, **options}
    client = TestClient(build_site(served, rules), **options)  # type: ignore[arg-type]
    client.portal = _Loop.portal
    return client


@pytest.fixture
def properties(tmp_path: Path) -> Path:
    path = tmp_path / "server.properties"
    path.write_text("# ours\nlog.cleaner.enable=false\n", "utf-8")
    return path


@pytest.fixture
def open_served(tmp_path: Path, properties: Path) -> Iterator[Callable[..., Served]]:
    """Opens the directory ``logs``, any number of times one after the other."""
    opened: list[Served] = []

    def serve(*, is_look: bool = False) -> Served:
        served = Served(ServeOptions(paths=(tmp_path / "logs",), properties=properties, is_look=is_look))
        opened.append(served)
        return served

    yield serve
    for served in opened:
        served.close()


@pytest.fixture
def served(open_served: Callable[..., Served]) -> Served:
    """Open directories with the compacted topic ``users`` of two partitions, and their catalogue."""
    served = open_served()
    served.opened().topics.create("users", 2, {"cleanup.policy": "compact"})
    served.opened().send("users", b"1", key=b"a", partition=0)
    served.cataloguer.refresh()
    return served


@pytest.fixture
def wait_for() -> Callable[[Callable[[], bool]], None]:
    """Waits until something holds; fails after 20 seconds."""

    def wait(holds: Callable[[], bool]) -> None:
        pause = threading.Event()
        for _ in range(2000):
            if holds():
                return
            pause.wait(0.01)
        raise AssertionError("it did not come")

    return wait
