"""What tests do in a browser: find, click and count, wait, look for barriers."""

from __future__ import annotations

import base64
import contextlib
import os
import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.common.exceptions import (
    NoSuchElementException,
    StaleElementReferenceException,
    TimeoutException,
)
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from tests.support.thoroughness import THOROUGH

RUN_AXE = """
const done = arguments[arguments.length - 1];
if (typeof axe === "undefined") bringAxe();
axe.run(document, {resultTypes: ["violations"]}).then(found => done(found.violations.map(
    violation => [violation.id, violation.nodes.map(node => node.html.slice(0, 200))])));
"""
FOCUSABLE = """
const places = "a[href], button, input, select, textarea, summary, [tabindex]";
const chosen = ({name}) => document.querySelector(`input[type=radio][name="${name}"]:checked`);
const tabbable = () => [...document.querySelectorAll(places)].filter((each) => !each.disabled
  && each.tabIndex >= 0 && each.type !== "hidden" && each.checkVisibility({checkVisibilityCSS: true})
  && !(each.type === "radio" && !each.checked && chosen(each)));
const text = (each) => (each.ariaLabel || each.textContent || each.value).trim().slice(0, 60);
const words = (each) => [each.localName, each.name || "", text(each)].join(" ");
"""
"""What the key Tab goes to, in the order of the document, and how a test names it."""
OUT_OF_ORDER = f"""{FOCUSABLE}
const shown = tabbable().filter((each) => !each.matches(".skip"));
const boxes = shown.map((each) => (each.closest("tr") || each).getBoundingClientRect());
return shown.filter((each, at) => at && boxes[at].bottom <= boxes[at - 1].top).map(words);
"""
"""What comes after something in the order of the document, and stands above it; cells of a row stand beside
each other, however high their text is."""
TOO_WIDE = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
MAGNIFIED = 320
"""The width in CSS pixels of a window of 1,280 at 400 % zoom, to which a page has to reflow."""
LOOKS = (("light", 1400), ("dark", MAGNIFIED))
"""The looks that a page is checked in: both themes, both widths."""
OTHER_LOOKS = (("light", MAGNIFIED), ("dark", 1400))
"""The other looks, of which thorough runs keep pictures, too, one of each page."""
TELEPHONE = 360
"""A width in between, to which a page has to reflow as well."""
ALIKE = {
    "broker": "broker-setting",
    "wrong-preview": "read-only-configuration",
    "preview": "read-only-configuration",
    "records": "tombstones",
    "offsets": "tombstones",
    "read-only-broker": "broker-setting",
    "read-only-segments": "segments",
    "viewer-queue": "queue",
    "broker-refused": "new-topic-refused",
    "wrong-query": "not-found",
    "offline-overview": "engine-lost",
    "empty-refused": "empty",
    "empty-what": "empty",
    "empty-a": "empty-no",
    "empty-refused-look": "empty-look",
    "erase": "erase-found",
    "selected-clean": "selected-settings",
    "selected-delete": "delete-ticked",
    "why": "why-superseded",
    "dry-run-of-a-broker": "dry-run",
    "audit-full-queue": "audit-full-configuration",
    "requests": "clients",
    **dict.fromkeys(("no-topic", "nothing-queue", "nothing-groups"), "nothing-topics"),
    **dict.fromkeys(("uncleanable", "savings", "changes", "jobs"), "runs"),
}
"""Pages and states that differ only in words or numbers from another one, which axe-core always checks."""
SCREENS = Path(os.environ.get("SILTSTONE_SCREENS", "build/screens"))
"""Where screenshots are kept, to be looked at: PAGE-THEME-WIDTH.png."""


def look(browser: webdriver.Chrome, theme: str, width: int) -> None:
    """Look through a window of this width in this theme, as the system of the visitor has it."""
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    features = [{"name": "prefers-color-scheme", "value": theme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def violations(browser: webdriver.Chrome, axe: str) -> Any:
    """The barriers that axe-core finds on the page."""
    if browser.execute_script("return typeof bringAxe") == "undefined":
        browser.execute_script(axe)
    return browser.execute_async_script(RUN_AXE)


def take_picture(browser: webdriver.Chrome, name: str) -> None:
    """Keep what the window shows, packed fast and not small."""
    how = {"format": "png", "optimizeForSpeed": True}
    picture = browser.execute_cdp_cmd("Page.captureScreenshot", how)["data"]
    (SCREENS / f"{name}.png").write_bytes(base64.b64decode(picture))


def keep(browser: webdriver.Chrome, axe: str, name: str, *, is_page: bool = False) -> None:
    """The page, as it stands, has no barrier, is no wider than the window, at 400 % zoom neither, and what
    has the focus in turn stands in that order; pictures of it are kept.

    axe-core looks at it in one of ``LOOKS``, by the name, which takes half of a second, in thorough runs in
    both. ``is_page``: it is a page as it opens, not one of its states, and shown in both looks, first in the
    one that the browser has: to change it takes as long as a picture.
    At what is ``ALIKE`` another one axe-core looks in thorough runs alone.
    """
    chosen = LOOKS if THOROUGH else (LOOKS[zlib.crc32(name.encode()) % len(LOOKS)],)
    is_wide = browser.execute_script("return innerWidth") == LOOKS[0][1]
    for theme, width in (LOOKS if is_wide else LOOKS[::-1]) if is_page else chosen:
        look(browser, theme, width)
        assert browser.execute_script(TOO_WIDE) <= 0, f"{name} is wider than {width} px"
        out_of_order = browser.execute_script(OUT_OF_ORDER)
        assert out_of_order == [], (name, width, out_of_order)
        if (theme, width) in chosen and (THOROUGH or name not in ALIKE):
            assert violations(browser, axe) == [], (name, theme, width)
        take_picture(browser, f"{name}-{theme}-{width}")
    if THOROUGH:
        for width in (MAGNIFIED, TELEPHONE):
            look(browser, LOOKS[0][0], width)
            assert browser.execute_script(TOO_WIDE) <= 0, f"{name} is wider than {width} px"
    for theme, width in OTHER_LOOKS if is_page and THOROUGH else ():
        look(browser, theme, width)
        take_picture(browser, f"{name}-{theme}-{width}")
    if not is_page:
        look(browser, *LOOKS[0])


def button(browser: webdriver.Chrome, text: str) -> WebElement:
    """The button with this text."""
    return browser.find_element(By.XPATH, f"//button[normalize-space()='{text}']")


def until(browser: webdriver.Chrome, holds: Callable[[], bool]) -> None:
    """Wait; a part of the page may be replaced while it is read."""
    ignored = [StaleElementReferenceException, NoSuchElementException]
    try:
        WebDriverWait(browser, 20, 0.1, ignored_exceptions=ignored).until(lambda _: holds())
    except TimeoutException:
        raise AssertionError(f"it did not come; the page says: {text_of(browser)}") from None


def text_of(browser: webdriver.Chrome) -> str:
    """The text of the page without its frame, as the browser shows it. (Selenium's own ``text`` asks for the
    style of each element, which takes a quarter of a second on a page with a large table.)"""
    text = browser.execute_script("return document.querySelector('main')?.innerText")
    if text is None:
        raise NoSuchElementException("the page has no contents yet")
    return re.sub(r"[ \t\xa0]+", " ", text)


class Visitor:
    """A user at the overview, whose clicks are counted. Typing is not."""

    def __init__(self, browser: webdriver.Chrome, url: str) -> None:
        self.browser, self.url, self.clicks = browser, url, 0

    def start(self) -> Visitor:
        """At the overview, with no click so far."""
        self.browser.get(f"{self.url}/ui/")
        self.clicks = 0
        return self

    def click(self, element: WebElement) -> None:
        """One click."""
        self.clicks += 1
        element.click()

    def follow(self, text: str) -> None:
        """Click the link with this text."""
        self._click_found(lambda: self.find(f"//a[normalize-space()='{text}']"))

    def press(self, text: str) -> None:
        """Click the button with this text."""
        self._click_found(lambda: button(self.browser, text))

    def _click_found(self, find: Callable[[], WebElement]) -> None:
        """One click, on what is found again if a poll has replaced it before the click."""
        for _ in range(5):
            with contextlib.suppress(StaleElementReferenceException):
                find().click()
                self.clicks += 1
                return
        raise AssertionError("the page replaces its contents all the time")

    def find(self, path: str) -> WebElement:
        """The element of an XPath."""
        return self.browser.find_element(By.XPATH, path)

    def write(self, name: str, text: str) -> None:
        """Type into a field, or choose an option by its text, with the keyboard."""
        field = self.browser.find_element(By.NAME, name)
        if field.tag_name == "input":
            field.clear()
        field.send_keys(text)
