"""Faults of requests: what a refused or cut request still does."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from siltstone.broker.faults import Faults, InjectedFault
from siltstone.broker.request_context import CLOSE
from siltstone.broker.wire.apis import METADATA
from siltstone.broker.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)

REQUEST = MetadataRequest(topics=(MetadataRequestTopic(name="users"),), allow_auto_topic_creation=True)


@pytest.mark.parametrize(
    ("fault", "creates"),
    [
        (InjectedFault(code=29), [False]),
        (InjectedFault(cuts=True), []),
        (InjectedFault(), [True]),
        (InjectedFault(code=29, after=True), [True]),
        (InjectedFault(cuts=True, after=True), [True]),
    ],
)
def test_metadata_that_is_refused_or_cut_creates_no_topic(fault: InjectedFault, creates: list[bool]) -> None:
    asked = []

    def handler(broker: object, request: MetadataRequest, context: object) -> MetadataResponse:
        asked.append(request.allow_auto_topic_creation)
        return MetadataResponse(topics=(MetadataResponseTopic(name="users"),), controller_id=7)

    faults = Faults()
    faults.add("Metadata", fault, 1)
    handle: Any = faults.around({METADATA: handler})[METADATA]
    response = asyncio.run(handle(None, REQUEST, SimpleNamespace(api_key=METADATA)))
    assert asked == creates
    if fault.cuts:
        assert response is CLOSE
    else:
        assert ([topic.error_code for topic in response.topics], response.controller_id) == (
            [fault.code or 0],
            7,
        )
