"""What a user writes wrongly in the forms of the console, in a browser: the cases of tests/web/test_forms.py
typed and sent. And two tabs that change the same thing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import Select

from siltstone.commands.served import Served, ServeOptions
from tests.console.browsing import keep, text_of, until
from tests.console.conftest import running
from tests.web.test_forms import WRONG

Server = tuple[str, Served]
SELECTED = "selected?topic=users&action="
FORMS = {
    "new-topic": ("new-topic", "Create"),
    "new-topic:check": ("new-topic", "Check"),
    "topics/users/configuration": ("topics/users/configuration?name={name}", "Apply"),
    "topics/users/partitions": ("topics/users/configuration", "Add"),
    "topics/users/delete": ("topics/users/configuration", "Delete"),
    "topics/users/produce": ("topics/users/produce", "Produce"),
    "topics/users/empty": ("topics/users/empty?mode=tombstones", "Empty"),
    "topics/users/erase": ("topics/users/erase", "Dry run"),
    "broker": ("broker?name={name}", "Save"),
    "selected/settings": (f"{SELECTED}settings&name={{name}}", "Preview"),
    "selected/delete": (f"{SELECTED}delete", "Delete"),
    "topics/users/records?": ("topics/users/records", "Find"),
}
"""By the path of a case the page that has its form, and the button that sends it."""
SHOWN = """
const field = document.activeElement, message = document.getElementById("wrong");
if (!message) return ["", "", "", 0, false];
const [place, beside] = [field, message].map((element) => element.getBoundingClientRect());
const isOnScreen = place.top >= 0 && place.bottom <= innerHeight;
return [field.name, field.value, message.textContent, beside.top - place.bottom, isOnScreen];
"""
"""The field that has the focus, its text, the message, how far below it that is; is the field seen?"""


@pytest.fixture(scope="module")
def two_partitions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server as the cases expect it."""
    folder = tmp_path_factory.mktemp("forms")
    (folder / "server.properties").write_text("log.cleaner.enable=false\n")
    properties = folder / "server.properties"
    with Served(ServeOptions(paths=(folder / "logs",), properties=properties, engine="process")) as served:
        served.opened().topics.create("users", 2, {"cleanup.policy": "compact"})
        served.opened().send("users", b"1", key=b"a", partition=0)
        for url in running(served):
            yield url, served


def form_of(browser: webdriver.Chrome, text: str) -> tuple[WebElement, WebElement]:
    """The form with the button of this text, the last one that there is, and the button."""
    button = browser.find_elements(By.XPATH, f"//form//button[normalize-space()='{text}']")[-1]
    return button.find_element(By.XPATH, "ancestor::form"), button


def fill(form: WebElement, values: dict[str, str]) -> None:
    """Type into the fields of a form, and choose."""
    for name, value in values.items():
        for field in form.find_elements(By.NAME, name)[:1]:
            if field.get_attribute("type") in ("hidden", "radio", "checkbox"):
                continue
            if not field.is_displayed():
                form.find_element(By.CSS_SELECTOR, "details.more summary").click()
            if field.tag_name == "select":
                (option,) = (
                    option for option in Select(field).options if option.get_property("value") == value
                )
                option.click()
            else:
                field.clear()
                field.send_keys(value)


@pytest.mark.long
@pytest.mark.parametrize(
    ("path", "form", "field", "text", "expected"),
    [(path, form, field, text, expected) for path, form, field, text, _, expected in WRONG],
    ids=[f"{path} {field} {text[:9] or 'empty'}" for path, _, field, text, _, _ in WRONG],
)
def test_what_is_wrong_is_said_beside_its_field_which_has_the_focus(
    browser: webdriver.Chrome,
    two_partitions: Server,
    path: str,
    form: dict[str, str],
    field: str,
    text: str,
    expected: str,
) -> None:
    url, served = two_partitions
    page, button = FORMS[path]
    wrong = {**form, field: text}
    browser.get(f"{url}/ui/{page.format(**wrong)}")
    if path.endswith("erase") and field == "typed":
        element, press = form_of(browser, button)
        fill(element, form)
        press.click()
        until(browser, lambda: "Where the key is" in text_of(browser))
        button = "Erase"
    element, press = form_of(browser, button)
    fill(element, wrong)
    press.click()
    if (path, text) == ("new-topic", ""):  # the browser itself says it
        name = browser.switch_to.active_element
        assert name.get_attribute("name") == "name" and name.get_attribute("validationMessage")
        return
    if text == "yesterday":  # which the browser does not let a user type into a field of time
        expected, text = "is missing", ""
    until(browser, lambda: expected in browser.execute_script(SHOWN)[2])
    name, value, message, below, is_on_screen = browser.execute_script(SHOWN)
    assert (name, is_on_screen) == (field, True), message
    assert value == text or field == "typed"
    assert -60 <= below <= 120, f"the message is {below} px below the field"
    assert served.opened().topics.names() == ["users"]
    browser.get_log("browser")  # of what was refused


TABS = {
    "setting": (
        "topics/users/configuration?name=segment.ms",
        "Apply",
        ({"value": "7777000"}, "Now: 7777000"),
        ({"value": "8888000"}, "8888000"),
        "Apply again to overwrite theirs",
    ),
    "broker": (
        "broker?name=log.retention.ms",
        "Save",
        ({"value": "7777000"}, "7777000"),
        ({"value": "8888000"}, "8888000"),
        "Save again to overwrite theirs",
    ),
}
"""By form: page and button; what the other tab writes, and the sign that it is done; what this one writes, as
the field keeps it; the words that say how to go on."""


@pytest.mark.long
@pytest.mark.parametrize("name", TABS)
def test_a_form_that_another_tab_has_overtaken_keeps_what_was_written_and_says_how_to_go_on(
    browser: webdriver.Chrome, open_server: Server, axe: str, name: str
) -> None:
    page, button, (values_of_the_other, sign), (own_values, own_value), way_on = TABS[name]
    url = f"{open_server[0]}/ui/{page}"
    browser.get(url)
    first = browser.current_window_handle
    browser.switch_to.new_window("tab")
    for tab, values in (("other", values_of_the_other), (first, own_values)):
        browser.get(url) if tab == "other" else browser.switch_to.window(tab)
        form, press = form_of(browser, button)
        fill(form, values)
        press.click()
        if tab == "other":
            until(browser, lambda: sign in text_of(browser))
            browser.close()
    until(browser, lambda: way_on in text_of(browser))
    keep(browser, axe, f"two-tabs-{name}")
    (field,) = own_values
    form, press = form_of(browser, button)
    assert form.find_element(By.NAME, field).get_attribute("value") == own_value
    press.click()
    until(browser, lambda: way_on not in text_of(browser))
    served = open_server[1]
    assert {
        "setting": served.describe("users").config.get("segment.ms"),
        "broker": str(served.opened().config["log.retention.ms"]),
    }[name] == own_value
    browser.get_log("browser")  # of the answer 412
