"""ApiVersions, versions 0 to 4: which APIs there are, in which versions.

No features are announced. With a finalized ``transaction.version`` of 2, Java's clients from 4.0 on would use
the second part of KIP-890; and nothing else depends on one. Corresponds to ``ApiVersionManager``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from siltstone.broker.answers import Call
from siltstone.broker.store import Broker
from siltstone.broker.wire.apis import API_VERSIONS, APIS, PRODUCE
from siltstone.broker.wire.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse

UNSUPPORTED_VERSION, INVALID_REQUEST = 35, 42
_NAMED_FROM = 3
"""The first version that names the client's software."""
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def announcing(keys: Iterable[int]) -> Callable[[Broker, ApiVersionsRequest, Call], ApiVersionsResponse]:
    """The handler that announces these APIs."""
    known = tuple(
        ApiVersion(
            api_key=key,
            # Versions 0 to 2 are refused. But older librdkafka stops to compress when 0 is missing
            # (KAFKA-18659).
            min_version=0 if key == PRODUCE else APIS[key].min_version,
            max_version=APIS[key].max_version,
        )
        for key in sorted(keys)
    )

    def answer(broker: Broker, request: ApiVersionsRequest, call: Call) -> ApiVersionsResponse:
        names = request.client_software_name, request.client_software_version
        if call.version >= _NAMED_FROM and not all(map(_SOFTWARE.fullmatch, names)):
            return ApiVersionsResponse(error_code=INVALID_REQUEST)
        return ApiVersionsResponse(api_keys=known)

    return answer


def unsupported() -> ApiVersionsResponse:
    """The answer, always in version 0, to an ApiVersions of an unknown version."""
    api = APIS[API_VERSIONS]
    only = ApiVersion(api_key=API_VERSIONS, min_version=api.min_version, max_version=api.max_version)
    return ApiVersionsResponse(error_code=UNSUPPORTED_VERSION, api_keys=(only,))
