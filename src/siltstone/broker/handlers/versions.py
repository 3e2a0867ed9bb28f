"""The handler of ApiVersions (versions 0 to 4): the APIs of this broker and their versions (Kafka's
``ApiVersionManager``).

No features are announced: no client needs one, and with a finalized ``transaction.version`` of 2 Java's
clients from 4.0 on would use transactions of KIP-890's second part.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from siltstone.broker.errors import Code
from siltstone.broker.request_context import RequestContext
from siltstone.broker.store import Broker
from siltstone.broker.wire.apis import API_VERSIONS, APIS, PRODUCE
from siltstone.broker.wire.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse

_NAMED_FROM = 3
"""The first version whose requests have the name and the version of the client's software (KIP-511)."""
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
"""A valid name, or version, of the client's software (``ApiVersionsRequest.isValid``)."""


def announcing(
    keys: Iterable[int],
) -> Callable[[Broker, ApiVersionsRequest, RequestContext], ApiVersionsResponse]:
    """The handler of ApiVersions, which announces the APIs with these keys."""
    known = tuple(
        ApiVersion(
            api_key=key,
            # As Kafka 4 does: versions 0 to 2 of Produce are announced although they are refused, since older
            # versions of librdkafka do not compress unless version 0 is announced (KAFKA-18659).
            min_version=0 if key == PRODUCE else APIS[key].min_version,
            max_version=APIS[key].max_version,
        )
        for key in sorted(keys)
    )

    def handle(broker: Broker, request: ApiVersionsRequest, context: RequestContext) -> ApiVersionsResponse:
        names = request.client_software_name, request.client_software_version
        if context.version >= _NAMED_FROM and not all(map(_SOFTWARE.fullmatch, names)):
            return ApiVersionsResponse(error_code=Code.INVALID_REQUEST)
        return ApiVersionsResponse(api_keys=known)

    return handle


def unsupported() -> ApiVersionsResponse:
    """The response to an unknown version of ApiVersions; it is written in version 0, which every client
    reads."""
    api = APIS[API_VERSIONS]
    only = ApiVersion(api_key=API_VERSIONS, min_version=api.min_version, max_version=api.max_version)
    return ApiVersionsResponse(error_code=Code.UNSUPPORTED_VERSION, api_keys=(only,))
