"""What a user may write wrongly in the forms of the console: empty, no number, negative, huge, unknown.
Each is refused with the right status and a message beside the field, the form keeps what was written, and
nothing is changed.
"""

from __future__ import annotations

import html
import re

import pytest
from starlette.testclient import TestClient

from siltstone.commands.served import Served
from siltstone.web.queries import RecordForm
from tests.web.conftest import client_of
from tests.web.test_pages import checked

HUGE = "9" * 400
NEW = {
    "name": "made",
    "partitions": "3",
    "policy": "compact",
    "segment.ms": "700000",
    "more": "retention.ms=7",
}
PRODUCED = {"key": "k1", "value": "v1", "headers": "h=1", "partition": "1"}
CHANGED = {"name": "segment.ms", "value": "700000"}
DELETING = {"name": "cleanup.policy", "value": "delete", "typed": "users"}
BROKER = {"name": "log.retention.ms", "value": "7"}
TICKED = {"topic": "users", "name": "segment.ms", "value": "700000"}
FROM_OFFSET = {"position": "offset", "offset": "0", "key": "", "contains": "x"}
FROM_TIME = {"position": "time", "time": "2026-01-01T00:00", "contains": "x"}
WRONG = [
    ("new-topic", NEW, "name", "", 400, "the empty string is not allowed"),
    ("new-topic", NEW, "name", "a b", 400, "characters other than"),
    ("new-topic", NEW, "name", "<b>", 400, "characters other than"),
    ("new-topic", NEW, "name", "users", 400, "already exists"),
    ("new-topic", NEW, "partitions", "two", 400, "is no number"),
    ("new-topic", NEW, "partitions", "0", 400, "at least 1"),
    ("new-topic", NEW, "partitions", HUGE, 400, "is no number"),
    ("new-topic:check", NEW, "segment.ms", "-1", 400, "at least 1"),
    ("new-topic:check", NEW, "min.cleanable.dirty.ratio", "a half", 400, "pass a number"),
    ("new-topic:check", NEW, "retention.bytes", HUGE, 400, "retention.bytes"),
    ("new-topic:check", NEW, "more", "no.such=1", 400, "no.such"),
    ("new-topic:check", NEW, "more", "segment.bytes", 400, "pass key=value"),
    ("topics/users/configuration", CHANGED, "value", "", 400, "pass a whole number"),
    ("topics/users/configuration", CHANGED, "value", "soon", 400, "pass a whole number"),
    ("topics/users/configuration", CHANGED, "value", "-7", 400, "at least 1"),
    ("topics/users/configuration", DELETING, "typed", "user", 400, "type users"),
    ("topics/users/partitions", {"count": ""}, "count", "", 400, "is no number"),
    ("topics/users/partitions", {"count": ""}, "count", "one more", 400, "is no number"),
    ("topics/users/partitions", {"count": ""}, "count", "1", 400, "at least 3"),
    ("topics/users/partitions", {"count": ""}, "count", "999999999", 400, "too many"),
    ("topics/users/delete", {}, "typed", "", 400, "type users"),
    ("topics/users/produce", PRODUCED, "partition", "second", 400, "is no number"),
    ("topics/users/produce", PRODUCED, "partition", "7", 404, "has no partition 7"),
    ("topics/users/produce", PRODUCED, "headers", "trace", 400, "has no ="),
    ("topics/users/produce", {**PRODUCED, "key_format": "base64"}, "key", "k", 400, "not base64"),
    ("topics/users/produce", {**PRODUCED, "value_format": "json"}, "value", "{", 400, "not JSON"),
    ("topics/users/empty", {"mode": "tombstones"}, "typed", "", 400, "type users"),
    ("topics/users/erase", {"key_format": "hex"}, "key", "xyz", 400, "not hex"),
    ("topics/users/erase", {"key": "a"}, "typed", "user", 400, "type users"),
    ("broker", BROKER, "value", "a week", 400, "pass a whole number"),
    ("broker", BROKER, "value", "", 400, "pass a whole number"),
    ("broker", BROKER, "value", "0", 400, "at least 1"),
    ("selected/settings", TICKED, "value", "later", 400, "pass a whole number"),
    ("selected/delete", {"topic": "users"}, "typed", "users", 400, "type 1 topic"),
    ("topics/users/records?", FROM_OFFSET, "offset", "", 400, "is missing"),
    ("topics/users/records?", FROM_OFFSET, "offset", "-1", 400, "whole number from 0 on"),
    ("topics/users/records?", FROM_OFFSET, "offset", HUGE, 400, "whole number from 0 on"),
    ("topics/users/records?", FROM_OFFSET, "partition", "x", 400, "is no partition"),
    ("topics/users/records?", FROM_OFFSET, "partition", "9", 404, "it has 0, 1"),
    ("topics/users/records?", FROM_TIME, "time", "yesterday", 400, "is no time"),
]
"""(Where to; the form as it would be right; the field, and its wrong text; the status; a part of the
message). A question mark: the form is a query."""


@pytest.mark.parametrize(
    ("path", "form", "field", "text", "status", "message"),
    WRONG,
    ids=[f"{path} {field} {text[:9] or 'empty'}" for path, _, field, text, _, _ in WRONG],
)
def test_what_is_wrong_is_said_beside_its_field(
    served: Served, path: str, form: dict[str, str], field: str, text: str, status: int, message: str
) -> None:
    client, wrong = client_of(served), {**form, field: text}
    before = served.describe("users"), served.opened()["users", 0].log_end_offset
    answer = _sent(client, path, wrong)
    assert answer.status_code == status, answer.text
    checked(answer.text)
    (marked,) = re.findall(
        r'<(?:input|textarea|select)[^>]* aria-invalid="true" aria-describedby="wrong"[^>]*>', answer.text
    )
    assert f'name="{field}"' in marked and "autofocus" in marked
    (beside,) = re.findall(r'id="wrong">(.*?)</', answer.text)
    assert message in html.unescape(beside)
    for name, value in wrong.items():
        if name not in ("mode", "typed", "key_format", "value_format", "policy"):  # choices, confirmations
            shown = html.escape(value).replace("&#x27;", "&#39;")
            places = (f'value="{shown}"', f">{shown}</textarea>", f"<option selected>{shown}")
            assert any(place in answer.text for place in places), name
    assert (served.describe("users"), served.opened()["users", 0].log_end_offset) == before
    assert served.opened().topics.names() == ["users"] and served.jobs.all() == []
    assert all(str(change.outcome).startswith("failed") for change in served.opened_changes().newest())


def _sent(client: TestClient, path: str, form: dict[str, str]):  # type: ignore[no-untyped-def]
    if path.endswith("?"):
        return client.get(f"/ui/{path}", params=form)
    return client.post(f"/ui/{path}", data=form, follow_redirects=False)


@pytest.mark.parametrize(
    ("time", "start_ms"),
    [
        ("1970-01-02T00:00", 86_400_000),
        ("1970-01-02T02:00:00.001+02:00", 86_400_001),
        ("1970-01-01T22:00-02:00", 86_400_000),
    ],
)
def test_a_time_with_a_zone_is_that_time(time: str, start_ms: int) -> None:
    assert RecordForm(position="time", time=time).query().start_ms == start_ms


@pytest.mark.parametrize("path", ["topics/users/configuration", "selected?topic=users&action=settings"])
def test_a_check_of_a_wrong_value_marks_the_field(served: Served, path: str) -> None:
    answer = client_of(served).get(f"/ui/{path}", params={"name": "segment.ms", "value": "soon"})
    checked(answer.text)
    assert re.search('name="value" aria-invalid="true" aria-describedby="wrong" autofocus', answer.text)
    (beside,) = re.findall(r'id="wrong">(.*?)</', answer.text)
    assert "pass a whole number" in html.unescape(beside)


def test_a_topic_that_another_user_has_changed_is_not_deleted(served: Served) -> None:
    client = client_of(served)
    page = client.get("/ui/topics/users/configuration").text
    (tag,) = set(re.findall('name="tag" value="([^"]*)"', page))
    served.opened().topics.alter("users", {"segment.ms": "700000"})
    form = {"typed": " users ", "tag": html.unescape(tag)}
    refused = client.post("/ui/topics/users/delete", data=form, follow_redirects=False)
    assert refused.status_code == 412 and "it has changed since it was read" in refused.text
    (tag,) = set(re.findall('name="tag" value="([^"]*)"', refused.text))
    form["tag"] = html.unescape(tag)
    assert client.post("/ui/topics/users/delete", data=form, follow_redirects=False).status_code == 303
    assert served.opened().topics.names() == []
