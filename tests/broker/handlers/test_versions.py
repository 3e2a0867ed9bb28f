"""ApiVersions, and what an unknown version of it is told."""

from siltstone.broker.dispatch import HANDLERS
from siltstone.broker.wire.apis import API_VERSIONS, APIS, PRODUCE
from siltstone.broker.wire.messages.api_versions import ApiVersionsRequest
from tests.support.wire_client import WireClient, read_response, request_frame

REQUEST = ApiVersionsRequest(client_software_name="test", client_software_version="1.0")


def test_every_version_announces_what_has_a_handler_and_nothing_else(client: WireClient) -> None:
    for version in range(5):
        answer = client.ask(REQUEST, version)
        assert answer.error_code == 0
        announced = {row.api_key: (row.min_version, row.max_version) for row in answer.api_keys}
        expected = {key: (APIS[key].min_version, APIS[key].max_version) for key in {*HANDLERS, API_VERSIONS}}
        if PRODUCE in expected:
            expected[PRODUCE] = (0, APIS[PRODUCE].max_version)
        assert announced == expected


def test_an_unknown_version_gets_the_body_of_version_0_with_the_one_entry(client: WireClient) -> None:
    for version in (5, 32767, -1):
        raw = request_frame(REQUEST, 4, correlation_id=7)
        client.send_bytes(raw[:6] + version.to_bytes(2, "big", signed=True) + raw[8:])
        frame = client.receive_frame()
        assert frame[:4] == b"\0\0\0\7"
        answer = read_response(REQUEST, 0, frame)
        assert answer.error_code == 35
        assert [(row.api_key, row.min_version, row.max_version) for row in answer.api_keys] == [(18, 0, 4)]
    assert client.ask(REQUEST, 4).error_code == 0  # the connection goes on


def test_a_wrong_software_name_or_version_is_refused_from_version_3_on(client: WireClient) -> None:
    for name, software_version in (
        ("", "1"),
        ("a b", "1"),
        ("a", ".1"),
        ("a", "1-"),
        ("ä", "1"),
        ("a\n", "1"),
    ):
        request = ApiVersionsRequest(client_software_name=name, client_software_version=software_version)
        assert [client.ask(request, version).error_code for version in (2, 3, 4)] == [0, 42, 42]
