"""Confluent's REST API for Kafka, version 3, as far as it applies to this server: below ``/v3`` and
``/kafka/v3``.

::

    shapes      kind, metadata, related, pages, ETags
    clusters    clusters, brokers, ACLs             configs   settings of topics and of the broker
    topics      topics, partitions, replicas        records   producing
    groups      consumer groups, read from __consumer_offsets
"""

from __future__ import annotations

from fastapi import APIRouter

from siltstone.web.rest.bodies import JSON_ONLY
from siltstone.web.rest.confluent import clusters, configs, groups, records, topics

router = APIRouter(dependencies=[JSON_ONLY])
for _prefix in ("/v3", "/kafka/v3"):
    for _part in (clusters, configs, topics, records, groups):
        router.include_router(_part.router, prefix=_prefix, include_in_schema=_prefix == "/v3")
