"""The console in a browser, over a real broker's directories in look mode: no barrier and no forbidden script
on any page, two widths, light and dark, script off."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By

from siltstone.commands.served import Served, ServeOptions
from tests.console.browsing import LOOKS, OTHER_LOOKS, SCREENS, button, keep, look, text_of, until
from tests.console.conftest import running
from tests.support.thoroughness import THOROUGH

PAGES = {
    "overview": "/ui/",
    "topics": "/ui/topics",
    "no-topic": "/ui/topics?contains=nothing",
    "new-topic": "/ui/new-topic",
    "selected-settings": "/ui/selected?topic=users&topic=lagged&action=settings&value=delete",
    "selected-clean": "/ui/selected?topic=users&topic=lagged&action=clean",
    "selected-delete": "/ui/selected?topic=users&topic=lagged&action=delete",
    "segments": "/ui/topics/lagged",
    "records": "/ui/topics/users/records",
    "refused": "/ui/topics/users/records?partition=9",
    "tombstones": "/ui/topics/users/records?tombstones=true&position=offset&offset=740",
    "offsets": "/ui/topics/__consumer_offsets/records",
    "configuration": "/ui/topics/users/configuration",
    "preview": "/ui/topics/users/configuration?name=cleanup.policy&value=delete",
    "wrong-preview": "/ui/topics/users/configuration?name=segment.ms&value=soon",
    "why": "/ui/topics/users/why/0/756",
    "history": "/ui/topics/users/history",
    "consumers": "/ui/topics/users/consumers",
    "produce": "/ui/topics/users/produce",
    "queue": "/ui/cleaner",
    "runs": "/ui/cleaner/runs",
    "uncleanable": "/ui/cleaner/uncleanable",
    "savings": "/ui/cleaner/savings",
    "broker": "/ui/broker",
    "broker-setting": "/ui/broker?name=log.cleaner.threads&contains=log.cleaner",
    "clients": "/ui/clients",
    "requests": "/ui/clients/requests",
    "directories": "/ui/directories",
    "directory": "/ui/directories/0?sort=bytes&descending=true",
    "groups": "/ui/groups",
    "transactions": "/ui/transactions",
    "changes": "/ui/changes",
    "jobs": "/ui/jobs",
    "api": "/ui/api",
    "help": "/ui/help",
    "empty-look": "/ui/topics/users/empty",
    "empty-refused-look": "/ui/topics/audit/empty",
    "erase-look": "/ui/topics/users/erase",
    "wrong-query": "/ui/topics?start=-1",
    "not-found": "/ui/topics/nobody",
}
REFUSED = {"refused": "404", "wrong-query": "400", "not-found": "404"}
"""Pages of an error, with the status that the browser writes into its own log, too."""
EMPTY_IN_LOOK_MODE = ("runs", "uncleanable", "savings", "changes")
"""Lists without a row in look mode: only thorough runs check them on an empty server as well."""


def test_no_page_has_a_barrier_or_breaks_its_policy(
    browser: webdriver.Chrome, looking: str, axe: str
) -> None:
    browser.get_log("browser")
    for name, path in PAGES.items():
        browser.get(looking + path)
        messages = [entry["message"] for entry in browser.get_log("browser")]
        assert all(name in REFUSED and REFUSED[name] in message for message in messages), (name, messages)
        assert name not in EMPTY_IN_LOOK_MODE or browser.find_elements(By.CSS_SELECTOR, "td.none"), name
        keep(browser, axe, name, is_page=True)
    look(browser, *LOOKS[0])
    pictures = {path.stem for path in SCREENS.glob("*.png")}
    looks = [f"{theme}-{width}" for theme, width in (*LOOKS, *(OTHER_LOOKS if THOROUGH else ()))]
    assert {f"{name}-{look}" for name in PAGES for look in looks} <= pictures


def test_pages_of_what_is_not_there_have_no_barrier(
    browser: webdriver.Chrome, nothing: str, axe: str
) -> None:
    others = EMPTY_IN_LOOK_MODE if THOROUGH else ()
    for name in ("overview", "topics", "queue", "groups", *others):
        browser.get(nothing + PAGES[name])
        assert browser.find_elements(By.CSS_SELECTOR, "td.none"), name
        keep(browser, axe, f"nothing-{name}")


def test_the_theme_is_switched_by_a_link_and_stays(browser: webdriver.Chrome, looking: str) -> None:
    paper = "return getComputedStyle(document.body).backgroundColor"
    browser.get(f"{looking}/ui/")
    light = browser.execute_script(paper)
    browser.find_element(By.LINK_TEXT, "dark").click()
    until(browser, lambda: browser.execute_script(paper) != light)
    dark = browser.execute_script(paper)
    browser.get(f"{looking}/ui/topics")
    assert browser.execute_script(paper) == dark
    browser.find_element(By.LINK_TEXT, "auto").click()
    until(browser, lambda: browser.execute_script(paper) == light)


def test_a_dry_run_can_be_made_in_look_mode(browser: webdriver.Chrome, looking: str, axe: str) -> None:
    browser.get(f"{looking}/ui/topics/lagged")
    browser.get_log("browser")  # of the page before, whose server is gone
    button(browser, "Dry run").click()
    until(browser, lambda: "Groups of segments" in text_of(browser))
    keep(browser, axe, "dry-run-of-a-broker")
    assert not browser.get_log("browser")


def test_records_begin_from_the_field_that_is_chosen_and_no_other_is_shown(
    browser: webdriver.Chrome, looking: str
) -> None:
    browser.get(f"{looking}/ui/topics/users/records")
    place, at = browser.find_element(By.NAME, "position"), browser.find_element(By.NAME, "offset")
    assert not at.is_displayed() and not browser.find_element(By.NAME, "time").is_displayed()
    place.send_keys("an offset")
    assert at.is_displayed() and not browser.find_element(By.NAME, "time").is_displayed()
    at.send_keys("756\n")
    until(browser, lambda: "2 records" in text_of(browser))
    assert browser.find_element(By.NAME, "offset").is_displayed()


def test_a_time_has_its_age_which_the_script_adds(browser: webdriver.Chrome, looking: str) -> None:
    browser.get(f"{looking}/ui/topics/users/records")
    until(browser, lambda: len(browser.find_elements(By.CSS_SELECTOR, "time[data-age]")) > 1)
    times = browser.find_elements(By.TAG_NAME, "time")
    assert all(re.fullmatch(r"\d+ (s|min|h|d) ago", str(time.get_attribute("data-age"))) for time in times)
    shown = "return getComputedStyle(arguments[0], '::after').content"
    assert "ago" in browser.execute_script(shown, times[0])


REFUSALS = {
    "read-only": {
        "segments": ("/ui/topics/users", "nothing may be changed here"),
        "configuration": (
            "/ui/topics/users/configuration?name=cleanup.policy&value=delete",
            "nothing may be changed here",
        ),
        "broker": ("/ui/broker", "nothing may be changed here"),
    },
    "viewer": {
        "segments": ("/ui/topics/users", "this needs the role editor"),
        "queue": ("/ui/cleaner", "this needs the role editor"),
        "records": ("/ui/topics/users/records", "this needs the role reader"),
    },
}
"""By state of a server the pages on which it says what may not be done, and its words."""


@contextlib.contextmanager
def visited_as(browser: webdriver.Chrome, folder: Path, state: str) -> Iterator[str]:
    """The URL of a server whose visitor has the role ``state``, or that is read-only."""
    token = hashlib.sha256(b"secret").hexdigest()
    (folder / "users").write_text(f"ada:{state}:sha256${token}\n")
    settings = {"siltstone.http.auth": "basic", "siltstone.http.users": str(folder / "users")}
    headers = {"Authorization": "Bearer secret"}
    if state == "read-only":
        settings, headers = {"siltstone.http.read.only": "true"}, {}
    options = ServeOptions(paths=(folder / "logs",), engine="process", creates=True, settings=settings)
    with Served(options) as served:
        for topic in ("users", "lagged", "audit"):
            served.opened().topics.create(topic, 1, {"cleanup.policy": "compact"})
            served.opened().send(topic, b"1", key=b"a", partition=0)
        browser.execute_cdp_cmd("Network.enable", {})
        browser.execute_cdp_cmd("Network.setExtraHTTPHeaders", {"headers": headers})
        try:
            yield from running(served)
        finally:
            browser.execute_cdp_cmd("Network.setExtraHTTPHeaders", {"headers": {}})
    browser.get_log("browser")  # of pages that were refused


@pytest.mark.parametrize("state", REFUSALS)
def test_pages_of_lower_roles_have_no_barrier(
    browser: webdriver.Chrome, tmp_path: Path, axe: str, state: str
) -> None:
    with visited_as(browser, tmp_path, state) as url:
        for name, (path, words) in REFUSALS[state].items():
            browser.get(url + path)
            assert words in text_of(browser), (name, text_of(browser))
            keep(browser, axe, f"{state}-{name}")


@pytest.mark.long
@pytest.mark.parametrize("state", ["read-only", "viewer", "reader", "editor", "admin"])
def test_no_page_has_a_barrier_for_any_role(
    browser: webdriver.Chrome, tmp_path: Path, axe: str, state: str
) -> None:
    with visited_as(browser, tmp_path, state) as url:
        for name, path in PAGES.items():
            browser.get(url + path)
            keep(browser, axe, f"{state}-{name}")


def test_a_full_audit_log_is_shown_without_a_barrier(
    browser: webdriver.Chrome, open_server: tuple[str, Served], axe: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(line: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    url, served = open_server
    monkeypatch.setattr(served.opened_changes(), "_append", full)
    for name, path, press in (
        ("configuration", "/ui/topics/users/configuration?name=segment.ms&value=700000", "Apply"),
        ("queue", "/ui/cleaner", "Pause"),
    ):
        browser.get(url + path)
        button(browser, press).click()
        until(browser, lambda: "not recorded" in text_of(browser) and "No space left" in text_of(browser))
        keep(browser, axe, f"audit-full-{name}")
    browser.get_log("browser")  # of what was refused


def test_a_hidden_tab_asks_nothing(browser: webdriver.Chrome, looking: str) -> None:
    """A poll is begun by the script's own event; whether htmx asks is seen in what the browser has loaded."""
    poll = "document.getElementById('live').dispatchEvent(new CustomEvent('every'))"
    hide = "Object.defineProperty(document, 'hidden', {value: true, configurable: true})"
    loaded = "return performance.getEntriesByType('resource').length"
    browser.get(f"{looking}/ui/topics")
    browser.execute_script(hide)
    before = browser.execute_script(loaded)
    browser.execute_async_script(f"{poll}; setTimeout(arguments[0], 300)")
    assert browser.execute_script(loaded) == before
    browser.execute_script(f"delete document.hidden; {poll}")
    until(browser, lambda: browser.execute_script(loaded) > before)


def test_a_server_that_is_gone_is_shown_on_the_page(
    browser: webdriver.Chrome, tmp_path: Path, axe: str
) -> None:
    poll = "document.getElementById('live').dispatchEvent(new CustomEvent('every'))"
    with Served(ServeOptions(paths=(tmp_path / "logs",), engine="process")) as served:
        for url in running(served):
            browser.get(f"{url}/ui/topics")
            connection = browser.find_element(By.ID, "connection")
            assert connection.text == ""
    browser.execute_script(poll)
    until(browser, lambda: connection.text.startswith("Not connected since "))
    assert "what is shown is older" in connection.text and "New topic" in text_of(browser)
    keep(browser, axe, "server-gone")
    browser.get_log("browser")  # of the request that failed


def test_pages_work_without_script(browser: webdriver.Chrome, looking: str) -> None:
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.get(f"{looking}/ui/topics")
        browser.find_element(By.NAME, "contains").send_keys("lagg")
        button(browser, "Show").click()
        until(browser, lambda: "1 topic" in text_of(browser))
        browser.find_element(By.LINK_TEXT, "due").click()
        until(browser, lambda: "It is due" in text_of(browser))
        browser.find_element(By.LINK_TEXT, "History").click()
        until(browser, lambda: "Cleanings and changes" in text_of(browser))
        assert not browser.find_element(By.CSS_SELECTOR, "[data-plot]").is_displayed()
        browser.get(f"{looking}/ui/topics/users/records")
        assert not browser.find_element(By.CSS_SELECTOR, "[data-tail]").is_displayed()
        browser.get(f"{looking}/ui/topics/users/configuration?name=cleanup.policy")
        button(browser, "Check").click()
        until(browser, lambda: "What it would do" in text_of(browser))
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
