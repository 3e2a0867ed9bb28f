"""The tasks of the console's users, each begun at the overview, with the clicks that the specification
allows; and what happens beside them: two editors, records that come, hostile ones, a restart."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By

from siltstone.base.errors import UsageError
from siltstone.commands.served import Served
from siltstone.log.names import TopicPartition
from siltstone.runtime.producing import NewRecord
from tests.console.browsing import Visitor, button, keep, text_of, until

USERS, EVENTS = TopicPartition("users", 0), TopicPartition("events", 0)
Server = tuple[str, Served]


@pytest.fixture
def visitor(browser: webdriver.Chrome, open_server: Server) -> Visitor:
    browser.get_log("browser")
    return Visitor(browser, open_server[0])


def test_1_a_policy_is_changed_in_three_clicks(visitor: Visitor, open_server: Server, axe: str) -> None:
    visitor.start().follow("Topics")
    visitor.click(visitor.find("//tr[th/a='users']//a[.='compact']"))
    visitor.write("value", "compact,delete")
    until(visitor.browser, lambda: "What it would do" in text_of(visitor.browser))
    keep(visitor.browser, axe, "policy-preview")
    visitor.write("typed", "users")
    visitor.press("Apply")
    until(visitor.browser, lambda: "Now: compact,delete" in text_of(visitor.browser))
    assert visitor.clicks == 3
    assert open_server[1].describe("users").config["cleanup.policy"] == "compact,delete"


def test_2_a_topic_is_made_in_three_clicks(visitor: Visitor, open_server: Server, axe: str) -> None:
    visitor.start().follow("Topics")
    visitor.follow("New topic")
    visitor.write("name", "made")
    visitor.write("delete.retention.ms", "86400000")
    visitor.press("Create")
    until(visitor.browser, lambda: "made" in open_server[1].opened().topics.names())
    assert visitor.clicks == 3
    expected = {"cleanup.policy": "compact", "delete.retention.ms": "86400000"}
    assert open_server[1].describe("made").config == expected
    visitor.browser.get(f"{visitor.url}/ui/new-topic")
    visitor.write("name", "made")
    visitor.press("Check")
    until(visitor.browser, lambda: "already exists" in text_of(visitor.browser))
    focus = "return document.activeElement.name + ' ' + document.getElementById('wrong').textContent"
    until(visitor.browser, lambda: "already exists" in visitor.browser.execute_script(focus))
    assert visitor.browser.execute_script(focus).startswith("name ")
    keep(visitor.browser, axe, "new-topic-refused")


def test_3_why_a_log_is_not_cleaned_in_two_clicks(visitor: Visitor, axe: str) -> None:
    visitor.start().follow("Topics")
    visitor.click(visitor.find("//tr[th/a='users']//td[last()]/a"))
    until(visitor.browser, lambda: "active segment" in text_of(visitor.browser))
    assert "Nothing to clean" in text_of(visitor.browser)
    assert visitor.clicks == 2
    keep(visitor.browser, axe, "cleaned-log")


def test_4_why_a_record_is_still_here_in_three_clicks(visitor: Visitor, axe: str) -> None:
    visitor.start().follow("Topics")
    visitor.follow("users")
    visitor.click(visitor.find("//tr[contains(., 'old')]//a[.='why']"))
    until(visitor.browser, lambda: "superseded" in text_of(visitor.browser))
    assert visitor.clicks == 3
    keep(visitor.browser, axe, "why-superseded")


def test_5_a_keys_value_now_in_three_clicks(visitor: Visitor) -> None:
    visitor.start().follow("Topics")
    visitor.follow("users")
    visitor.write("view", "latest")
    visitor.write("key", "alice")
    visitor.press("Find")
    until(visitor.browser, lambda: "1 record," in text_of(visitor.browser))
    assert visitor.clicks == 3
    (row,) = visitor.browser.find_elements(By.CSS_SELECTOR, "table.records tbody tr")
    assert "new" in row.text


def test_6_a_topic_is_run_dry_or_cleaned_in_three_clicks(
    visitor: Visitor, open_server: Server, axe: str
) -> None:
    open_server[1].opened()[USERS].roll()
    for action, outcome in (("Dry run", "2 older records"), ("Clean now", "as JSON")):
        visitor.start().follow("Topics")
        visitor.click(visitor.find("//tr[th/a='users']//td[last()]/a"))
        visitor.press(action)
        until(visitor.browser, lambda outcome=outcome: outcome in text_of(visitor.browser))  # type: ignore[misc]
        assert visitor.clicks == 3
        keep(visitor.browser, axe, action.replace(" ", "-").lower())


def test_7_an_uncleanable_log_is_tried_again_in_two_clicks(
    visitor: Visitor, open_server: Server, axe: str
) -> None:
    visitor.start()
    visitor.click(visitor.find("//li[@class='red']/a"))
    assert "61" in text_of(visitor.browser)
    keep(visitor.browser, axe, "uncleanable-log")
    visitor.press("Retry")
    until(visitor.browser, lambda: "the cleaner skips no log" in text_of(visitor.browser))
    assert visitor.clicks == 2
    assert open_server[1].opened().uncleanable == {}


def test_8_what_compaction_has_saved_in_two_clicks(visitor: Visitor, axe: str) -> None:
    visitor.start().follow("Cleaner")
    visitor.follow("Savings")
    assert "older records of keys that have a newer one" in text_of(visitor.browser)
    assert visitor.clicks == 2
    keep(visitor.browser, axe, "savings-of-cleanings")
    visitor.browser.get(f"{visitor.url}/ui/topics/users/history")
    until(visitor.browser, lambda: bool(visitor.browser.find_elements(By.CSS_SELECTOR, ".uplot canvas")))
    keep(visitor.browser, axe, "history-of-cleanings")
    assert not visitor.browser.get_log("browser")


def test_9_what_the_disk_is_full_of_in_two_clicks(visitor: Visitor, open_server: Server, axe: str) -> None:
    leftover = open_server[1].paths[0] / "users-0" / "00000000000000000000.log.deleted"
    leftover.write_bytes(b"x" * 5000)
    visitor.start().follow("Directories")
    visitor.click(visitor.find("//tbody//th/a"))
    assert visitor.clicks == 2
    text = text_of(visitor.browser)
    assert "users-0/00000000000000000000.log.deleted" in text and "5.0 kB" in text
    keep(visitor.browser, axe, "directory-with-leftovers")


def test_10_a_topic_is_emptied_in_three_clicks_and_its_typed_name(
    visitor: Visitor, open_server: Server, axe: str
) -> None:
    visitor.start().follow("Topics")
    visitor.follow("users")
    visitor.follow("Empty")
    assert "What would go" in text_of(visitor.browser)  # the dry run, at once
    assert [cell.text for cell in visitor.browser.find_elements(By.CSS_SELECTOR, "tbody td")][1] == "2"
    keep(visitor.browser, axe, "empty")
    visitor.write("typed", "user\n")
    until(visitor.browser, lambda: "was not confirmed" in text_of(visitor.browser))
    keep(visitor.browser, axe, "empty-refused")
    visitor.write("typed", "users\n")
    until(visitor.browser, lambda: "topic users is empty" in text_of(visitor.browser))
    assert visitor.clicks == 3
    keep(visitor.browser, axe, "emptied")
    assert [record.value for record in open_server[1].opened()[USERS]] == [None, None]
    for path, words in (
        ("users/empty?mode=truncate", "no reader learns of it"),
        ("plain/empty", "What would go"),
        ("plain/empty?mode=tombstones", "a tombstone removes nothing"),
    ):
        visitor.browser.get(f"{visitor.url}/ui/topics/{path}")
        assert words in text_of(visitor.browser)
        keep(visitor.browser, axe, f"empty-{words.split()[0].lower()}")


def test_10_a_key_is_erased_in_five_clicks(visitor: Visitor, open_server: Server, axe: str) -> None:
    visitor.browser.get(f"{visitor.url}/ui/topics/users/erase")
    visitor.write("key", "nobody\n")
    until(visitor.browser, lambda: "No record has this key" in text_of(visitor.browser))
    keep(visitor.browser, axe, "erase-absent")
    visitor.start().follow("Topics")
    visitor.follow("users")
    visitor.follow("Erase a key")
    keep(visitor.browser, axe, "erase")
    visitor.write("key", "alice")
    visitor.press("Dry run")
    until(visitor.browser, lambda: "Where the key is" in text_of(visitor.browser))
    keep(visitor.browser, axe, "erase-found")
    assert "alice" not in visitor.browser.current_url
    visitor.write("typed", "users")
    visitor.press("Erase")
    until(visitor.browser, lambda: "no value of the key is left" in text_of(visitor.browser))
    assert visitor.clicks == 5
    keep(visitor.browser, axe, "erased")
    values = {record.key: record.value for record in open_server[1].opened()[USERS]}
    assert values[b"alice"] is None and values[b"bob"] is not None
    visitor.browser.get(f"{visitor.url}/ui/changes")
    assert "erase-key" in text_of(visitor.browser)
    keep(visitor.browser, axe, "changes-made")


def test_what_went_wrong_is_shown_without_a_barrier(visitor: Visitor, open_server: Server, axe: str) -> None:
    served = open_server[1]

    def fail(progress: object) -> None:
        raise UsageError("the work was not possible", advice="do it another way")

    served.jobs.wait(served.jobs.submit("clean", "users", "-", fail).id, 60)
    go_on = threading.Event()
    served.jobs.submit("clean", "events", "-", lambda progress: go_on.wait(60))
    served.opened_cleaner().pause(USERS)
    served.opened_cleaner()._metrics.cleaned([], is_engine_up=False)
    served.opened().topics.alter("plain", {"segment.ms": "1000"})
    pages = {
        "jobs-failed": ("/ui/jobs", "the work was not possible"),
        "paused": ("/ui/cleaner", "a user has paused it"),
        "engine-lost": ("/ui/", "engine lost"),
        "broker-refused": ("/ui/broker?name=log.cleaner.threads&value=many", "log.cleaner.threads"),
        "offline": ("/ui/directories", "the disk failed"),
        "offline-directory": ("/ui/directories/0", "the disk failed"),
        "offline-overview": ("/ui/", "is offline"),
        "offline-topic": ("/ui/topics/users", "the disk failed"),
    }
    try:
        for name, (path, words) in pages.items():
            if name == "offline":
                served.opened().directories[0].go_offline("the disk failed")
            visitor.browser.get(visitor.url + path)
            assert words in text_of(visitor.browser), (name, text_of(visitor.browser))
            if visitor.browser.find_elements(By.CSS_SELECTOR, "details.equivalents"):
                visitor.browser.execute_script(
                    "for (const each of document.querySelectorAll('details.equivalents')) each.open = true"
                )
            keep(visitor.browser, axe, name)
    finally:
        go_on.set()


def test_ticks_stay_while_a_list_polls_and_each_topic_is_previewed(
    visitor: Visitor, open_server: Server, axe: str
) -> None:
    visitor.start().follow("Topics")
    tick = visitor.find("//input[@value='users']")
    tick.click()
    open_server[1].opened().topics.create("later", 1, {})
    open_server[1].cataloguer.refresh()
    poll = "document.getElementById('live').dispatchEvent(new CustomEvent('every'))"
    visitor.browser.execute_script(poll)
    assert tick.is_selected() and "later" not in text_of(visitor.browser)
    tick.click()
    visitor.browser.execute_script(poll)
    until(visitor.browser, lambda: "later" in text_of(visitor.browser))
    for topic in ("users", "later"):
        visitor.find(f"//input[@value='{topic}']").click()
    visitor.press("Delete …")
    until(visitor.browser, lambda: "2 topics" in text_of(visitor.browser))
    keep(visitor.browser, axe, "delete-ticked")
    visitor.write("typed", "2 topics")
    visitor.press("Delete")
    until(visitor.browser, lambda: "What was done" in text_of(visitor.browser))
    keep(visitor.browser, axe, "deleted-ticked")
    assert open_server[1].opened().topics.names() == ["events", "plain"]


def test_two_editors_see_each_others_values(visitor: Visitor, open_server: Server, axe: str) -> None:
    page = f"{visitor.url}/ui/topics/users/configuration?name=segment.ms"
    visitor.browser.get(page)
    first = visitor.browser.current_window_handle
    visitor.browser.switch_to.new_window("tab")
    visitor.browser.get(page)
    visitor.write("value", "7777000")
    visitor.press("Apply")
    until(visitor.browser, lambda: "Now: 7777000" in text_of(visitor.browser))
    visitor.browser.close()
    visitor.browser.switch_to.window(first)
    visitor.write("value", "8888000")
    visitor.press("Apply")
    until(visitor.browser, lambda: "you wrote" in text_of(visitor.browser))
    text = text_of(visitor.browser)
    assert "7777000" in text and "8888000" in text
    keep(visitor.browser, axe, "two-editors")
    visitor.press("Apply")
    until(visitor.browser, lambda: "Now: 8888000" in text_of(visitor.browser))
    assert open_server[1].describe("users").config["segment.ms"] == "8888000"


def test_new_records_are_followed_until_the_user_stops(
    visitor: Visitor, open_server: Server, axe: str
) -> None:
    manager = open_server[1].opened()
    visitor.browser.get(f"{visitor.url}/ui/topics/users/records")
    visitor.press("Follow")
    until(visitor.browser, lambda: "Waiting for new records" in text_of(visitor.browser))
    rows = "return document.querySelectorAll('table.records tbody tr').length"
    before = visitor.browser.execute_script(rows)

    def arrives() -> bool:
        """The stream begins at the end of the log when it is open: a record before that is not in it."""
        manager.send("users", b"<b>fresh</b>", key=b"carol", partition=0)
        return "<b>fresh</b>" in text_of(visitor.browser)

    until(visitor.browser, arrives)
    assert visitor.browser.execute_script(rows) > before
    keep(visitor.browser, axe, "tail")
    many = [NewRecord(key=b"%d" % number, value=b"many") for number in range(600)]
    manager.send_many("users", many, partition=0)
    until(visitor.browser, lambda: visitor.browser.execute_script(rows) == 500)
    visitor.press("Stop")
    until(visitor.browser, lambda: "Stopped after" in text_of(visitor.browser))
    assert not visitor.browser.get_log("browser")


_FAKE_STREAM = """
window.EventSource = class extends EventTarget {
  constructor() { super(); window.stream = this; }
  close() {}
};
"""


def test_records_that_were_deleted_before_they_could_be_followed_are_told(visitor: Visitor) -> None:
    visitor.browser.get(f"{visitor.url}/ui/topics/users/records")
    visitor.browser.execute_script(_FAKE_STREAM)
    visitor.press("Follow")
    for kind, text in (("gap", "offset 3 is below the log start 7"), ("records", "<tr><td>7</td></tr>")):
        visitor.browser.execute_script(
            "stream.dispatchEvent(new MessageEvent(arguments[0], { data: arguments[1] }))", kind, text
        )
    message = "Following: 1 new record. Others were deleted before they could be shown: offset 3 is below"
    until(visitor.browser, lambda: message in text_of(visitor.browser))


HOSTILE = (
    b"<img src=x onerror=alert(1)><script>alert(2)</script>\"'&{{7*7}}"
    b"\r\nevent: end\r\x00\x1b[31m\xe2\x80\xae"
)


def test_hostile_records_are_shown_and_do_nothing(visitor: Visitor, open_server: Server, axe: str) -> None:
    manager = open_server[1].opened()
    for key, value in (
        (HOSTILE, HOSTILE),
        (HOSTILE + b"\xff", HOSTILE * 11_000),
        (b"\xff" * 1000, b"{" * 5000),
    ):
        manager.send("users", value, key=key, partition=0, headers=[(HOSTILE.decode("utf-8"), HOSTILE)])
    for query in (
        "",
        "?value_decoding=utf8&key_decoding=utf8",
        "?value_decoding=json",
        "?contains=%3Cscript%3E",
    ):
        visitor.browser.get(f"{visitor.url}/ui/topics/users/records{query}")
        assert "<script>alert(2)" in text_of(visitor.browser) or "3c696d67" in text_of(visitor.browser)
    keep(visitor.browser, axe, "hostile-records")
    visitor.press("Follow")

    def arrives() -> bool:
        manager.send("users", HOSTILE, key=b"comes", partition=0)
        return "comes" in text_of(visitor.browser)

    until(visitor.browser, arrives)
    visitor.press("Stop")
    for path in (
        "/ui/topics/%3Cscript%3Ealert(1)%3C%2Fscript%3E",
        "/ui/topics?contains=%22%3E%3Cimg%20src%3Dx%3E",
    ):
        visitor.browser.get(visitor.url + path)
    name = "//h1[contains(., 'Topics')]"
    assert visitor.find(name)
    messages = [entry["message"] for entry in visitor.browser.get_log("browser")]
    assert all("404" in message for message in messages), messages  # of the topic that there is not
    assert (
        visitor.browser.execute_script("return document.querySelectorAll('main img, main script').length")
        == 0
    )


@pytest.fixture
def process(tmp_path: Path) -> Iterator[str]:
    """The URL of a server in a process of its own, which can be restarted."""
    (tmp_path / "server.properties").write_text("log.cleaner.enable=false\n")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    flags = ("--create", "--engine=process", f"--listen=http://127.0.0.1:{port}", "--kafka-listen=none")
    paths = (str(tmp_path / "logs"), f"--config={tmp_path / 'server.properties'}")
    command = [sys.executable, "-m", "siltstone", "serve", *paths, *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None
        for line in started.stdout:
            if line.startswith("serving "):
                break
        yield f"http://127.0.0.1:{port}"
        started.send_signal(signal.SIGTERM)


def test_the_log_cleaner_is_switched_on_saved_and_the_broker_restarted(
    browser: webdriver.Chrome, process: str, axe: str
) -> None:
    visitor = Visitor(browser, process).start()
    visitor.follow("Broker")
    visitor.click(visitor.find("//input[@role='switch']"))
    visitor.press("Save")
    until(browser, lambda: "Restart pending" in text_of(browser))
    keep(browser, axe, "restart-pending")
    visitor.press("Restart")
    until(browser, lambda: "Now on." in text_of(browser) and "Restart pending" not in text_of(browser))
    assert visitor.clicks == 4
    browser.get(f"{process}/ui/changes")
    assert "restart" in text_of(browser) and "alter-broker" in text_of(browser)
    assert button(browser, "Show")
