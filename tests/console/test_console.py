"""The console in a browser, over a real broker's directories in look mode: no barrier and no forbidden script
on any page, two widths, light and dark, script off."""

from __future__ import annotations

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By

from tests.console.browsing import button, resize, text_of, until, violations
from tests.console.conftest import SCREENS

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
    "tombstones": "/ui/topics/users/records?tombstones=true&position=start",
    "offsets": "/ui/topics/__consumer_offsets/records",
    "configuration": "/ui/topics/users/configuration",
    "preview": "/ui/topics/users/configuration?name=cleanup.policy&value=delete",
    "wrong-preview": "/ui/topics/users/configuration?name=segment.ms&value=soon",
    "why": "/ui/topics/users/why/0/756",
    "history": "/ui/topics/users/history",
    "produce": "/ui/topics/users/produce",
    "queue": "/ui/cleaner",
    "runs": "/ui/cleaner/runs",
    "uncleanable": "/ui/cleaner/uncleanable",
    "savings": "/ui/cleaner/savings",
    "broker": "/ui/broker",
    "broker-setting": "/ui/broker?name=log.cleaner.threads",
    "clients": "/ui/clients",
    "requests": "/ui/clients/requests",
    "directories": "/ui/directories",
    "directory": "/ui/directories/0?sort=bytes&descending=true",
    "groups": "/ui/groups",
    "transactions": "/ui/transactions",
    "changes": "/ui/changes",
    "jobs": "/ui/jobs",
    "api": "/ui/api",
}


@pytest.mark.parametrize(("theme", "width"), [("light", 360), ("dark", 1400)])
def test_no_page_has_a_barrier_or_breaks_its_policy(
    browser: webdriver.Chrome, looking: str, axe: str, theme: str, width: int
) -> None:
    resize(browser, width)
    browser.get(f"{looking}/ui/theme/{theme}")
    browser.get_log("browser")
    for name, path in PAGES.items():
        browser.get(looking + path)
        assert not browser.get_log("browser"), name
        assert violations(browser, axe) == [], name
        wide = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert browser.execute_script(wide) <= 0, f"{name} is wider than {width} px"
        browser.save_screenshot(str(SCREENS / f"{name}-{theme}-{width}.png"))


def test_a_dry_run_in_look_mode(browser: webdriver.Chrome, looking: str, axe: str) -> None:
    resize(browser, 1400)
    browser.get(f"{looking}/ui/theme/light")
    browser.get(f"{looking}/ui/topics/lagged")
    button(browser, "Dry run").click()
    until(browser, lambda: "Groups of segments" in text_of(browser))
    assert violations(browser, axe) == []
    assert not browser.get_log("browser")
    browser.save_screenshot(str(SCREENS / "dry-run-light-1400.png"))


def test_pages_work_without_script(browser: webdriver.Chrome, looking: str) -> None:
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.get(f"{looking}/ui/topics")
        browser.find_element(By.NAME, "contains").send_keys("lagg")
        button(browser, "Show").click()
        until(browser, lambda: "1 topics" in text_of(browser))
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
