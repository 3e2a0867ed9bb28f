"""The headers of requests and responses (Kafka's ``RequestHeader``, ``ResponseHeader``).

::

    request:  0         2             4                8
              | api key | api version | correlation id | client id (int16, bytes) | tags (header v2) | body
    response: 0                4
              | correlation id | tags (header v1) | body

The client id is in the old form, with an int16 size, in all versions. A flexible version of an API has
request header v2 and response header v1, with one exception: the response to ApiVersions has header v0, since
the client does not know yet which versions the broker has.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from siltstone.broker.wire.apis import API_VERSIONS, APIS
from siltstone.broker.wire.codec import MalformedRequestError, skip_tags

_START = struct.Struct(">hhih")
"""A request header up to the size of the client id, which is -1 for null."""
_INT32 = struct.Struct(">i")


class RequestHeader(NamedTuple):
    """A request's header. ``body``: the position in the frame at which the body starts; for an API or a
    version that is unknown, the position after the client id."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body: int


def read_header(frame: memoryview) -> RequestHeader:
    """Read the header of a frame, which is passed without its length. Raises MalformedRequestError."""
    if len(frame) < _START.size:
        raise MalformedRequestError("the frame ends within its header", position=len(frame))
    key, version, correlation_id, size = _START.unpack_from(frame)
    client_id, body = None, _START.size
    if size >= 0:
        body += size
        if body > len(frame):
            raise MalformedRequestError("the frame ends within the client id", position=len(frame))
        client_id = str(frame[_START.size : body], "utf-8", "replace")
    api = APIS.get(key)
    if api is not None and version >= api.first_flexible and api.has(version):
        body = skip_tags(frame, body)
    return RequestHeader(key, version, correlation_id, client_id, body)


def response_header(key: int, version: int, correlation_id: int) -> bytes:
    """The header of the response to a request with this API key and version."""
    is_flexible = version >= APIS[key].first_flexible and key != API_VERSIONS
    return _INT32.pack(correlation_id) + (b"\0" if is_flexible else b"")
