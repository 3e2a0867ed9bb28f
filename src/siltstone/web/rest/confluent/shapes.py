"""The members that all resources of Confluent's REST API have: ``kind``, ``metadata`` with ``self`` and
``resource_name``, ``related`` links, and pages.

A page's token is the base64 of the key of the last resource on it: topics that come and go between two pages
neither repeat nor hide others.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import dropwhile, islice
from typing import Annotated, Any
from urllib.parse import quote, urlencode

from fastapi import Depends, Header, HTTPException, Query, Request
from pydantic import BaseModel, ConfigDict

from siltstone.commands.cluster import cluster_identity
from siltstone.commands.served import Served
from siltstone.web.dependencies import CurrentServed
from siltstone.web.queries import DIGITS
from siltstone.web.rest.bodies import JsonObject

Key = str | int | list[str | int]
IfMatch = Annotated[str | None, Header(description="Change only what has this ETag, else 412")]
PAGE_SIZE_MAX = 10_000
CLUSTER_PATH = "/clusters/{cluster_id}"


class Related(BaseModel):
    """A link."""

    related: str


class Metadata(BaseModel):
    """``self``: where the resource is; ``resource_name``: its Confluent resource name (``crn:///…``)."""

    model_config = ConfigDict(extra="allow")
    resource_name: str


class Resource(BaseModel):
    """A resource: the members besides these depend on ``kind``."""

    model_config = ConfigDict(extra="allow")
    kind: str
    metadata: Metadata


class ListMetadata(BaseModel):
    """``next``: the next page, null at the end."""

    model_config = ConfigDict(extra="allow")
    next: str | None


class ResourceList(BaseModel):
    """Resources of one kind."""

    kind: str
    metadata: ListMetadata
    data: list[Resource]


@dataclass(frozen=True, slots=True, kw_only=True)
class Paging:
    """A page: at most ``size`` resources (None: all) after the one with the key in ``token``."""

    size: int | None
    token: str | None

    def after(self) -> Key | None:
        """The key in ``token``, None without a token. Raises HTTPException for one that this server has not
        made."""
        if not self.token:
            return None
        try:
            key = json.loads(base64.urlsafe_b64decode(self.token))
        except (ValueError, binascii.Error, RecursionError):
            key = None
        if not isinstance(key, str | int | list):
            raise HTTPException(400, "page_token: this server has not made it")
        return key


def _paging(
    page_size: Annotated[int | None, Query(ge=1, le=PAGE_SIZE_MAX), DIGITS] = None,
    page_token: str | None = None,
) -> Paging:
    return Paging(size=page_size, token=page_token)


Page = Annotated[Paging, Depends(_paging)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The cluster of a request: what is served, its ids, and the URL below which all links are."""

    served: Served
    id: str
    broker_id: int
    root: str

    def url(self, *parts: object) -> str:
        """The URL of a resource of the cluster."""
        return "/".join((self.root, "clusters", *(quote(str(part), "") for part in (self.id, *parts))))

    def link(self, *parts: object) -> JsonObject:
        """A link to a resource of the cluster, as ``related`` members have it."""
        return {"related": self.url(*parts)}

    def resource(self, kind: str, *parts: object, **members: object) -> JsonObject:
        """A resource at the path of ``parts``: collection, name, collection, name … ."""
        pairs = list(zip(map(str, parts[::2]), parts[1::2], strict=False))
        named = [f"{collection.removesuffix('s')}={name}" for collection, name in pairs]
        name = "/".join((f"crn:///kafka={self.id}", *named, *map(str, parts[2 * len(pairs) :])))
        metadata = {"self": self.url(*parts), "resource_name": name}
        return {"kind": kind, "metadata": metadata, "cluster_id": self.id, **members}

    def listing(
        self,
        kind: str,
        parts: Iterable[object],
        keys: Iterable[Any],
        make: Callable[[Any], JsonObject],
        page: Paging,
    ) -> JsonObject:
        """A page of a list of resources. ``keys``: of all resources, ascending, of which no more are consumed
        than the page needs; ``make`` makes the resource of a key."""
        return listing(kind, self.url(*parts), keys, make, page)


def listing(
    kind: str, url: str, keys: Iterable[Any], make: Callable[[Any], JsonObject], page: Paging
) -> JsonObject:
    """A list at ``url``; see ``Cluster.listing``."""
    after, remaining = page.after(), iter(keys)
    if after is not None:
        last = _comparable(after)
        remaining = dropwhile(lambda key: key <= last, remaining)
    try:
        shown = list(remaining if page.size is None else islice(remaining, page.size))
        has_more = next(remaining, None) is not None
    except TypeError:  # the token's key cannot be compared with those of this list
        raise HTTPException(400, "page_token: it is of another list") from None
    following = None
    if has_more:
        token = base64.urlsafe_b64encode(json.dumps(shown[-1]).encode()).decode()
        following = f"{url}?{urlencode({'page_size': page.size, 'page_token': token})}"
    return {"kind": kind, "metadata": {"self": url, "next": following}, "data": list(map(make, shown))}


def _comparable(key: Key) -> Any:
    """The key as lists have it: a tuple comes back from the token's JSON as a list."""
    return tuple(key) if isinstance(key, list) else key


def root_of(request: Request) -> str:
    """The URL of the API that the request came through: ``http://host/v3`` or ``http://host/kafka/v3``."""
    prefix = "kafka/v3" if request.url.path.startswith("/kafka/") else "v3"
    return f"{request.base_url}{prefix}"


def this_cluster(request: Request, served: CurrentServed) -> Cluster:
    """The only cluster."""
    identity = cluster_identity(served)
    return Cluster(served=served, id=identity.cluster_id, broker_id=identity.broker_id, root=root_of(request))


def _named_cluster(cluster_id: str, here: Annotated[Cluster, Depends(this_cluster)]) -> Cluster:
    if cluster_id != here.id:
        raise HTTPException(404, f"this server has the cluster {here.id}, not {cluster_id[:64]!r}")
    return here


OnlyCluster = Annotated[Cluster, Depends(this_cluster)]
NamedCluster = Annotated[Cluster, Depends(_named_cluster)]
"""A route's parameter: the cluster that its path names."""


def refuse_other_broker(cluster: Cluster, broker_id: int) -> None:
    """Raises HTTPException for a broker that is not this one."""
    if broker_id != cluster.broker_id:
        raise HTTPException(404, f"this server is broker {cluster.broker_id}, not {broker_id}")
