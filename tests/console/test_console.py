"""The console in a browser: no barrier and no forbidden script on any page, the tasks with their clicks, two
widths, light and dark, script off."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from siltstone.commands.served import Served
from tests.console.conftest import SCREENS

PAGES = {
    "overview": "/ui/",
    "topics": "/ui/topics",
    "no-topic": "/ui/topics?contains=nothing",
    "segments": "/ui/topics/lagged",
    "records": "/ui/topics/users/records",
    "refused": "/ui/topics/users/records?partition=9",
    "tombstones": "/ui/topics/users/records?tombstones=true&position=start",
    "offsets": "/ui/topics/__consumer_offsets/records",
    "configuration": "/ui/topics/users/configuration",
    "preview": "/ui/topics/users/configuration?name=cleanup.policy&value=delete",
    "wrong-preview": "/ui/topics/users/configuration?name=segment.ms&value=soon",
    "why": "/ui/topics/users/why/0/756",
    "history": "/ui/topics/users/history",
    "cleaner": "/ui/cleaner",
    "broker": "/ui/broker",
    "directories": "/ui/directories",
    "groups": "/ui/groups",
    "changes": "/ui/changes",
    "jobs": "/ui/jobs",
}
RUN_AXE = """
const done = arguments[arguments.length - 1];
axe.run(document).then(found => done(found.violations.map(
    violation => [violation.id, violation.nodes.map(node => node.html.slice(0, 200))])));
"""


def resize(browser: webdriver.Chrome, width: int) -> None:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1400])
def test_no_page_has_a_barrier_or_breaks_its_policy(
    browser: webdriver.Chrome, looking: str, axe: str, theme: str, width: int
) -> None:
    resize(browser, width)
    browser.get(f"{looking}/ui/theme/{theme}")
    browser.get_log("browser")
    for name, path in PAGES.items():
        browser.get(looking + path)
        assert not browser.get_log("browser"), name
        browser.execute_script(axe)
        assert browser.execute_async_script(RUN_AXE) == [], name
        wide = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert browser.execute_script(wide) <= 0, f"{name} is wider than {width} px"
        browser.save_screenshot(str(SCREENS / f"{name}-{theme}-{width}.png"))


def test_pages_work_without_script(browser: webdriver.Chrome, looking: str) -> None:
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.get(f"{looking}/ui/topics")
        browser.find_element(By.NAME, "contains").send_keys("lagg")
        button(browser, "Show").click()
        until(browser, lambda: "1 topics" in text_of(browser))
        browser.find_element(By.LINK_TEXT, "due").click()
        until(browser, lambda: "It is due" in text_of(browser))
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def button(browser: webdriver.Chrome, text: str) -> WebElement:
    return browser.find_element(By.XPATH, f"//button[normalize-space()='{text}']")


def until(browser: webdriver.Chrome, holds: Callable[[], bool]) -> None:
    """Wait; a part of the page may be replaced while it is read."""
    waiting = WebDriverWait(browser, 20, ignored_exceptions=[StaleElementReferenceException])
    waiting.until(lambda _: holds())


def text_of(browser: webdriver.Chrome) -> str:
    return browser.find_element(By.TAG_NAME, "main").text


def test_a_tab_that_polls_shows_what_has_changed(
    browser: webdriver.Chrome, open_server: tuple[str, Served]
) -> None:
    url, served = open_server
    resize(browser, 1400)
    browser.get(f"{url}/ui/topics")
    assert "later" not in text_of(browser)
    served.opened().topics.create("later", 1, {})
    served.cataloguer.refresh()
    until(browser, lambda: "later" in text_of(browser))


def test_the_tasks_of_the_specification_take_their_clicks(
    browser: webdriver.Chrome, open_server: tuple[str, Served]
) -> None:
    """1 change a policy, 2 make a topic, 3 why is it not cleaned, 5 a key's value now, 6 clean now."""
    url, served = open_server
    resize(browser, 1400)
    # 2: Topics → New topic → Create
    browser.get(f"{url}/ui/")
    browser.find_element(By.LINK_TEXT, "Topics").click()
    browser.find_element(By.XPATH, "//summary[.='New topic']").click()
    browser.find_element(By.NAME, "name").send_keys("made")
    button(browser, "Create").click()
    until(browser, lambda: "made" in served.opened().topics.names())
    assert served.describe("made").config == {"cleanup.policy": "compact"}
    # 3: Topics → its state
    browser.find_element(By.LINK_TEXT, "Topics").click()
    browser.find_element(By.XPATH, "//tr[th/a='users']//td[last()]/a").click()
    until(browser, lambda: "Nothing to clean" in text_of(browser))
    # 6: … → Clean now
    browser.find_element(By.NAME, "force").click()
    button(browser, "Clean now").click()
    until(browser, lambda: "as JSON" in text_of(browser))
    # 5: Topics → its name → Find, view latest
    browser.find_element(By.LINK_TEXT, "Topics").click()
    browser.find_element(By.LINK_TEXT, "users").click()
    browser.find_element(By.NAME, "key").send_keys("alice")
    button(browser, "Find").click()
    until(browser, lambda: "1 records" in text_of(browser))
    rows = browser.find_elements(By.CSS_SELECTOR, "tbody tr")
    assert len(rows) == 1 and "new" in rows[0].text
    # 1: Topics → its policy → Apply; what may delete data wants the topic's name
    browser.find_element(By.LINK_TEXT, "Topics").click()
    browser.find_element(By.XPATH, "//tr[th/a='made']//td[2]/a").click()
    browser.find_element(By.XPATH, "//option[.='cleanup.policy']").click()
    browser.find_element(By.NAME, "value").send_keys("compact,delete")
    button(browser, "Apply").click()
    until(browser, lambda: "was not confirmed" in text_of(browser))
    browser.find_element(By.XPATH, "//option[.='cleanup.policy']").click()
    browser.find_element(By.NAME, "value").send_keys("compact,delete")
    browser.find_element(By.NAME, "typed").send_keys("made")
    button(browser, "Apply").click()
    until(browser, lambda: served.describe("made").config["cleanup.policy"] == "compact,delete")
    assert served.changes is not None and len(served.changes.newest()) == 3
