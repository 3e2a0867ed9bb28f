"""Requests that schemathesis makes from ``/openapi.json``: no failure of the server, and every answer is as
the document says.

Each family of the API × who asks: a client without a login, each role, and any client of a server that only
looks. Each operation gets requests that fit the document and such that do not, with names of its own making
and with those of things that are there.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import replace

import hypothesis
import pytest
from hypothesis.errors import Unsatisfiable
from schemathesis import CheckContext, Config, Response, openapi
from schemathesis.generation import GenerationMode
from schemathesis.generation.case import Case
from schemathesis.schemas import APIOperation
from schemathesis.specs.openapi.checks import positive_data_acceptance

from siltstone.commands.administration import NEW_PARTITIONS_MAX
from siltstone.commands.cluster import cluster_identity
from siltstone.commands.served import Served
from siltstone.web.identity import Identity, Role, Users
from siltstone.web.openapi import description_of
from siltstone.web.running import rules_of
from siltstone.web.site import build_site
from tests.support.thoroughness import THOROUGH, few, turn
from tests.web.conftest import BASE

FAMILIES = {"confluent": "/v3/", "pulsar": "/admin/", "own": "/api/"}
ROLES = {role.name.lower(): role for role in Role if role}
EXAMPLES = 10 if THOROUGH else 1
"""Requests for an operation, a mode and a way to name things."""
PARTITIONS_MAX = 20
NO_RIGHT = {401, 403}
OF_WRONG_DATA = {400, 422}
OF_THINGS = {404, 409, 412, 428, 429}
"""Statuses that speak of things (unknown, busy, changed meanwhile), not of the form of a request."""
_USERS = "\n".join(f"{name}:{name}:sha256${hashlib.sha256(name.encode()).hexdigest()}" for name in ROLES)


class Asking:
    """A client that sends requests to a family of a site's API, and the document of the site."""

    def __init__(self, served: Served, who: str, family: str) -> None:
        identity = Identity() if who == "look" else Identity(auth="basic", users=Users(_USERS, "users"))
        rules = rules_of(served.config, [], is_look=served.is_look)
        self._site = build_site(served, replace(rules, identity=identity))
        self._headers = {"Authorization": f"Bearer {who}"} if who in ROLES else {}
        self._served, self._cluster = served, cluster_identity(served).cluster_id
        self._document = description_of(self._site._app)  # type: ignore[attr-defined]
        self._prefix, self._may_all = FAMILIES[family], who == "admin"
        # Pulsar answers 412 to a bad name or a negative number.
        self._wrong = OF_WRONG_DATA | NO_RIGHT | ({412} if family == "pulsar" else set())
        statuses = sorted(map(str, self._wrong | {404}))
        checks = {"negative_data_rejection": {"expected-statuses": statuses}}
        self.schema = openapi.from_dict(self._document, config=Config.from_dict({"checks": checks}))
        self.schema.app = self._site

    def operations(self) -> Iterator[APIOperation]:
        """The operations of the family."""
        for result in self.schema.get_all_operations():
            operation = result.ok()
            if operation.path.startswith(self._prefix):
                yield operation

    def names(self, operation: APIOperation) -> dict[str, object]:
        """Things that are there, for the parameters of an operation's path."""
        existing = {
            **dict.fromkeys(("topic", "topic_name"), "users"),
            **dict.fromkeys(("partition", "partition_id", "offset", "broker_id"), 0),
            "cluster_id": self._cluster,
            "tenant": "public",
            "namespace": "default",
            "name": "log.retention.ms" if "broker" in operation.path else "retention.ms",
        }
        return {name: value for name, value in existing.items() if f"{{{name}}}" in operation.path}

    def try_operation(self, operation: APIOperation, number: int) -> None:
        """Requests to one operation, in each mode, with names of things that are there, and others; if not
        thorough, one of the four at which it is ``number``'s turn."""
        query = {"wait": False} if operation.path.endswith("records:tail") else {}
        for names in turn(number, ({}, self.names(operation))):
            is_there = len(names) == operation.path.count("{")
            may_be_wrong = self._can_be_wrong(operation, not names)
            is_wrong_now = number // 2 % 2 == 0
            if THOROUGH or not may_be_wrong or not is_wrong_now:
                positive = operation.as_strategy(GenerationMode.POSITIVE, path_parameters=names, query=query)
                self._try(positive, is_there=is_there)
            if may_be_wrong and (THOROUGH or is_wrong_now):
                negative = operation.as_strategy(GenerationMode.NEGATIVE, path_parameters=names, query=query)
                with contextlib.suppress(Unsatisfiable):
                    self._try(negative, is_there=is_there)

    def _can_be_wrong(self, operation: APIOperation, with_path: bool) -> bool:
        """Is there something in a request for which not every text will do? (A stream with a wrong ``wait``
        may be one that waits; tests/web/test_tail.py has what is wrong with a stream.)"""
        if operation.path.endswith("records:tail"):
            return False
        described = self._document["paths"][operation.path][operation.method]
        places = {"query", "path"} if with_path else {"query"}
        kinds = [
            parameter["schema"] for parameter in described.get("parameters", ()) if parameter["in"] in places
        ]
        return "requestBody" in described or any(kind.get("type") != "string" for kind in kinds)

    def _try(self, cases: hypothesis.strategies.SearchStrategy[Case], *, is_there: bool) -> None:
        """Send requests. ``is_there``: their paths name things that are there."""

        def is_refused_for_what_it_says(ctx: CheckContext, response: Response, case: Case) -> bool | None:
            assert case.meta is not None
            self._check_status(response, case, case.meta.generation.mode, is_there=is_there)
            return None

        @hypothesis.settings(
            max_examples=EXAMPLES,
            phases=[hypothesis.Phase.generate],
            suppress_health_check=list(hypothesis.HealthCheck),
            database=None,
            derandomize="CI" in os.environ,
        )
        @hypothesis.given(case=cases)
        def send(case: Case) -> None:
            count = case.body.get("partitions_count") if isinstance(case.body, dict) else None
            if isinstance(count, int | float) and count <= NEW_PARTITIONS_MAX:  # a float is whole, too: 7.0
                # 10,000 partitions are fine, and take a minute; more are refused.
                case.body["partitions_count"] = min(count, PARTITIONS_MAX)
            case.call_and_validate(
                base_url=BASE,
                headers=self._headers,
                excluded_checks=[positive_data_acceptance],
                additional_checks=[is_refused_for_what_it_says],
            )

        send()

    def _check_status(self, response: Response, case: Case, mode: GenerationMode, *, is_there: bool) -> None:
        """In place of ``positive_data_acceptance``, to which every refusal is a failure, and beside
        ``negative_data_rejection``, to which every 404 is fine.

        A request that fits the document may be refused for what it says (an unknown setting, a bad name), but
        not for its form; one that does not fit only for its form, unless its path names what is not there.
        """
        status = response.status_code
        if status in NO_RIGHT:
            assert not self._may_all, "an admin may do everything"
        elif mode.is_negative:
            assert status < 400 or status in self._wrong or not is_there, status
        elif status >= 400:
            assert status in {400, 422} | OF_THINGS, status
            names_more = case.method != "GET" or "partition" in (case.query or {})
            assert status != 404 or names_more or not is_there, "what is there is found"
            answer = response.json()
            reason = answer.get("message") or answer["reason"]
            # A topic may be called "body", and is what such a status speaks of.
            speaks_of_form = reason.startswith(("body", "query.", "path.", "header."))
            assert status in OF_THINGS - {412} or not speaks_of_form, reason

    def put_back(self) -> None:
        """A request may have deleted the topic."""
        if not self._served.is_look and "users" not in self._served.opened().topics.names():
            self._served.opened().topics.create("users", 2, {"cleanup.policy": "compact"})
            self._served.opened().send("users", b"1", key=b"a", partition=0)


WHO = ["anonymous", *ROLES, "look"]
PAIRS = list(itertools.product(FAMILIES, WHO))
OFTEN = {(family, "admin") for family in FAMILIES}
OFTEN |= {("pulsar", who) for who in ("look", "anonymous", "viewer")}
"""An administrator asks all families in every run, three others the smallest of them."""
ASKED = [number for number, pair in enumerate(PAIRS) if pair in OFTEN]


@pytest.mark.random
@pytest.mark.parametrize(("family", "who"), few(PAIRS, *ASKED))
def test_answers_are_as_the_document_says(
    served: Served, open_served: Callable[..., Served], family: str, who: str
) -> None:
    if who == "look":
        served.opened().flush()
        served = open_served(is_look=True)
        served.cataloguer.refresh()
    asking, tried = Asking(served, who, family), 0
    for operation in asking.operations():
        asking.put_back()
        asking.try_operation(operation, tried + WHO.index(who))
        tried += 1
    assert tried >= {"confluent": 40, "pulsar": 10, "own": 20}[family]
