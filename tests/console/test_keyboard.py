"""The console by keyboard alone: what Tab goes to and in which order, how it is seen, and what is done with
it; and what a user sees at 400 % zoom."""

from __future__ import annotations

import json

import pytest
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from siltstone.commands.served import Served
from tests.console.browsing import FOCUSABLE, LOOKS, look, text_of, until
from tests.console.test_console import PAGES
from tests.support.thoroughness import THOROUGH

WATCH = (
    f"""{FOCUSABLE}
"""
    + """
window.reached = [];
document.addEventListener("focusin", ({target}) => {
  const style = getComputedStyle(target), place = target.getBoundingClientRect();
  const isSeen = target.matches(".skip") || style.outlineStyle !== "none" && parseFloat(style.outlineWidth);
  const isInside = place.bottom > 0 && place.top < innerHeight && place.right > 0 && place.left < innerWidth;
  window.reached.push([words(target), isSeen && isInside]);
});
return tabbable().slice(tabbable().indexOf(document.activeElement) + 1).map(words);
"""
)
"""Records which elements get the focus from now on, and whether each is visible; returns those that are to
get it in turn, after the field that has it now, which was refused."""
STEPS_TO = f"""{FOCUSABLE}
const tabs = tabbable(), at = tabs.indexOf(document.activeElement);
return tabs.findIndex((target, index) => index > at && words(target).includes(arguments[0])) - at;
"""
"""How often Tab is to be pressed until the focus is on what has these words."""


def press(browser: webdriver.Chrome, *keys: str) -> None:
    """Press keys, one after the other, wherever the focus is."""
    ActionChains(browser).send_keys(*keys).perform()


def go_to(browser: webdriver.Chrome, words: str) -> None:
    """Press Tab until the focus is on what has these words, as a name of a field or as a text."""
    steps = browser.execute_script(STEPS_TO, words)
    press(browser, *[Keys.TAB] * steps)
    assert words in browser.execute_script(f"{FOCUSABLE} return words(document.activeElement)")


def walked(browser: webdriver.Chrome, url: str) -> list[str]:
    """The elements that Tab goes to on a page: all that can be used, in order, each visible in its turn."""
    browser.get(url)
    expected = browser.execute_script(WATCH)
    press(browser, *[Keys.TAB] * len(expected))
    reached = browser.execute_script("return window.reached")
    assert [words for words, _ in reached] == expected, url
    assert all(is_seen for _, is_seen in reached), (url, [words for words, is_seen in reached if not is_seen])
    return expected


def test_tab_goes_through_a_page_in_its_order_and_is_seen(
    browser: webdriver.Chrome, open_server: tuple[str, Served]
) -> None:
    words = walked(browser, f"{open_server[0]}/ui/topics/users/configuration")
    assert words[0] == "a  To the contents"
    for action in ("button  Check", "input typed ", "button  Apply", "button  Add", "button  Delete"):
        assert action in words


@pytest.mark.long
@pytest.mark.parametrize("name", PAGES)
def test_tab_goes_through_each_page_in_look_mode(browser: webdriver.Chrome, looking: str, name: str) -> None:
    assert walked(browser, looking + PAGES[name])
    browser.get_log("browser")  # of pages that tell of an error


@pytest.mark.long
def test_tab_goes_through_each_page_with_all_its_buttons(
    browser: webdriver.Chrome, open_server: tuple[str, Served]
) -> None:
    for path in PAGES.values():
        assert walked(browser, open_server[0] + path.replace("lagged", "plain"))
    browser.get_log("browser")


def test_the_first_tab_leads_past_the_links_of_each_page(browser: webdriver.Chrome, looking: str) -> None:
    browser.get(f"{looking}/ui/topics")
    press(browser, Keys.TAB)
    skip = browser.find_element(By.CLASS_NAME, "skip")
    assert browser.switch_to.active_element == skip and skip.rect["x"] >= 0
    press(browser, Keys.ENTER, Keys.TAB)
    assert browser.switch_to.active_element.text == "New topic"


@pytest.mark.long
def test_a_policy_is_changed_and_a_topic_deleted_by_keyboard(
    browser: webdriver.Chrome, open_server: tuple[str, Served]
) -> None:
    url, served = open_server
    browser.get(f"{url}/ui/topics/users/configuration")
    go_to(browser, "select value")
    press(browser, "compact,delete")
    until(browser, lambda: "What it would do" in text_of(browser))
    go_to(browser, "input typed")
    press(browser, "users")
    go_to(browser, "button  Apply")
    press(browser, Keys.ENTER)
    until(browser, lambda: "Now: compact,delete" in text_of(browser))
    assert served.describe("users").config["cleanup.policy"] == "compact,delete"
    browser.get(f"{url}/ui/topics")
    go_to(browser, "tick plain")
    press(browser, Keys.SPACE)
    go_to(browser, "Delete …")
    press(browser, Keys.ENTER)
    until(browser, lambda: "This may delete data" in text_of(browser))
    go_to(browser, "input typed")
    press(browser, "1 topic", Keys.ENTER)
    until(browser, lambda: "What was done" in text_of(browser))
    assert served.opened().topics.names() == ["events", "users"]


def test_the_focus_stays_on_a_button_while_its_list_polls(
    browser: webdriver.Chrome, open_server: tuple[str, Served]
) -> None:
    url, served = open_server
    browser.get(f"{url}/ui/cleaner")
    pause = browser.find_element(By.XPATH, "//tr[contains(., 'users-0')]//button[.='Pause']")
    browser.execute_script("arguments[0].focus()", pause)
    served.opened().topics.create("later", 1, {"cleanup.policy": "compact"})
    served.cataloguer.refresh()
    browser.execute_script("document.getElementById('live').dispatchEvent(new CustomEvent('every'))")
    until(browser, lambda: "later-0" in text_of(browser))
    active = browser.switch_to.active_element
    assert active.text == "Pause" and active != pause
    assert "users-0" in active.find_element(By.XPATH, "ancestor::tr").text


WRITTEN = """
window.written = [];
const real = CanvasRenderingContext2D.prototype.fillText;
CanvasRenderingContext2D.prototype.fillText = function (text, x, y) {
  const width = this.measureText(text).width, left = x - {right: width, center: width / 2}[this.textAlign];
  window.written.push([text, left, left + width, y, this.canvas.width]);
  return real.apply(this, arguments);
};
"""
"""Keeps each text that is drawn on a canvas: its left and right end, its height, the width of the canvas."""


def test_what_is_written_on_a_plot_is_whole_and_apart(
    browser: webdriver.Chrome, open_server: tuple[str, Served]
) -> None:
    url, _ = open_server
    added = browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": WRITTEN})
    try:
        for width in (320, 360, 700, 1400) if THOROUGH else (360,):
            look(browser, "light", width)
            browser.get(f"{url}/ui/topics/users/history")
            until(browser, lambda: bool(browser.execute_script("return window.written.length")))
            written = browser.execute_script("return [...new Set(window.written.map(JSON.stringify))]")
            texts = [json.loads(text) for text in written]
            assert any(text.startswith("20") for text, *_ in texts) and len(texts) >= 4
            for text, left, right, y, end in texts:
                assert left >= 0 and right <= end, (text, width)
                beside = [(other, at) for other, at, _, height, _ in texts if height == y and at > left]
                assert all(at - right >= 8 for _, at in beside), (text, beside, width)
    finally:
        browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", added)
        look(browser, *LOOKS[0])
