"""A browser, and servers for it: a real broker's directories in look mode, and open directories."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.common.exceptions import WebDriverException
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service

from siltstone.commands.served import Served, ServeOptions
from siltstone.log.names import TopicPartition
from siltstone.web.running import WebServer
from tests.console.browsing import LOOKS, SCREENS, look
from tests.support.golden_sets import unpack_broker
from tests.support.objects.packages import axe_script


@pytest.fixture(scope="session")
def axe(browser: webdriver.Chrome) -> str:
    """The source of axe-core, which checks a page for barriers, as the body of a function. The browser has it
    ready in each page that it opens from now on: to send it takes more time than most pages, and to run it
    where it is not needed a tenth of the time of a page."""
    text = f"window.bringAxe = () => {{{axe_script().read_text('utf-8')}}};"
    browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": text})
    return text


@pytest.fixture(scope="session")
def browser() -> Iterator[webdriver.Chrome]:
    """Chromium without a window: its headless shell, which has no user interface and takes a fifth less of
    the processors, or the whole of it. Without either these tests fail: make test-console installs them."""
    options = Options()
    window = ("--headless=new", "--disable-gpu", "--hide-scrollbars")
    place = ("--no-sandbox", "--disable-dev-shm-usage")  # root, and the small /dev/shm of a container
    alone = ("--disable-extensions", "--disable-background-networking", "--disable-component-update")
    for argument in (*window, *place, *alone):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    shell = shutil.which("chromium-headless-shell")
    options.binary_location = shell or shutil.which("chromium") or "chromium"
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    driver.set_page_load_timeout(60)
    driver.set_script_timeout(120)  # axe, on a busy machine
    SCREENS.mkdir(parents=True, exist_ok=True)
    for picture in SCREENS.glob("*.png"):  # of an earlier run
        picture.unlink()
    look(driver, *LOOKS[0])
    yield driver
    # Debian's headless shell is a script, and the driver ends that alone: the browser would stay.
    with contextlib.suppress(WebDriverException):
        driver.execute_cdp_cmd("Browser.close", {})
    driver.quit()


@pytest.fixture(scope="session")
def looking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a server that looks at a stopped broker's directories."""
    paths = unpack_broker(tmp_path_factory.mktemp("broker"))
    with Served(ServeOptions(paths=paths, is_look=True)) as served:
        yield from running(served)


@pytest.fixture
def nothing(tmp_path: Path) -> Iterator[str]:
    """The URL of a server that has just made its directory: there is no topic, and nothing has happened."""
    with Served(ServeOptions(paths=(tmp_path / "logs",), engine="process")) as served:
        yield from running(served)


@pytest.fixture
def open_server(tmp_path: Path) -> Iterator[tuple[str, Served]]:
    """The URL of a server with the compacted topic ``users``, which was cleaned twice and has something dirty
    again, and the topic ``events``, whose log is uncleanable."""
    properties = tmp_path / "server.properties"
    properties.write_text("# ours\nlog.cleaner.enable=false\n")
    options = ServeOptions(paths=(tmp_path / "logs",), properties=properties, engine="process")
    with Served(options) as served:
        manager = served.opened()
        manager.topics.create("users", 1, {"cleanup.policy": "compact"})
        manager.topics.create("events", 1, {"cleanup.policy": "compact"})
        manager.topics.create("plain", 1, {})
        for _ in range(2):
            for number in range(20):
                manager.send("users", b"old %d" % number, key=b"alice" if number % 2 else b"bob", partition=0)
            served.opened_cleaner().clean_now(["users"])
        for value in (b"old", b"new"):
            manager.send("users", value, key=b"alice", partition=0)
        manager.send("events", b"1", key=b"a", partition=0)
        reason = f"{tmp_path}/logs/events-0/00000000000000000000.log: byte 61: the checksum does not match"
        manager.serving()[0].mark_uncleanable(TopicPartition("events", 0), reason, served.clock.now_ms())
        for url in running(served):
            yield url, served


def running(served: Served) -> Iterator[str]:
    served.cataloguer.refresh()
    server = WebServer(served, ["http://127.0.0.1:0"])
    server.start()
    try:
        yield server.urls[0]
    finally:
        server.stop()


os.environ.setdefault("SE_OFFLINE", "true")  # Selenium looks for no driver elsewhere
