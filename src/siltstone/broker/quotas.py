"""Enforces quotas: a client that exceeds one gets a throttle time, and its connection is muted for as long.

::

    request ─► response ─► recorded ─► over the quota? throttle_time_ms in the response, which is sent at
                                       once; the connection is muted for as long (KIP-219)

    rate      for bytes, time of requests, connections: the amounts of 11 windows of a second, divided by the
              time of the windows; the throttle time is how long the excess takes at the quota's rate
    tokens    for partitions (KIP-599): a bucket that fills at the quota's rate, up to 11 seconds' worth;
              the throttle time is how long it takes to be at 0 again

The quota of a client is the first that is set, in Kafka's order: that of its user and its id, of its user and
the default id, of its user, of the default user and its id, of both defaults, of the default user, of its id,
of the default id. All clients of a user share the user's quota.

Times are those of a clock that is passed in, in seconds. Corresponds to Kafka's ``ClientQuotaManager``,
``ClientRequestQuotaManager``, ``ControllerMutationQuotaManager``, ``ConnectionQuotas``, and to ``Rate``,
``TokenBucket`` of its metrics.
"""

from __future__ import annotations

import hashlib
import ipaddress
import math
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from siltstone.base.config import INT_MAX, Config
from siltstone.broker.request_context import CLIENT_ID_MAX, RequestContext
from siltstone.runtime.quotas import (
    CLIENT_ID,
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    IP,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    USER,
    Quotas,
)

ANONYMOUS = "ANONYMOUS"
"""The user of every connection: this broker authenticates none (``KafkaPrincipal.ANONYMOUS``)."""
PRODUCE, FETCH, REQUEST, MUTATION, CONNECTION = "Produce", "Fetch", "Request", "ControllerMutation", "Ip"
"""The kinds of quotas: of clients, by the names of Kafka's ``QuotaType``, and of addresses."""
KINDS: Mapping[str, str] = {
    PRODUCE: PRODUCER_BYTE_RATE,
    FETCH: CONSUMER_BYTE_RATE,
    REQUEST: REQUEST_PERCENTAGE,
    MUTATION: CONTROLLER_MUTATION_RATE,
    CONNECTION: CONNECTION_CREATION_RATE,
}
"""The key of each kind of quota, as in ``AlterClientQuotas``."""
METERS_MAX = 10_000
"""The most rates and buckets that are kept; the least recently used one is removed. Without a limit, a client
that changes its id with each request would use up the memory."""
THROTTLE_MS_MAX = INT_MAX
"""The largest throttle time: an int32 in responses."""
_CAPPED = (REQUEST, CONNECTION)
"""The kinds whose throttle time is one window at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaWindows:
    """``samples`` windows of ``window_ms`` each; the last is the current one (``quota.window.num``)."""

    samples: int = 11
    window_ms: int = 1_000

    @classmethod
    def of(cls, config: Config, prefix: str = "") -> QuotaWindows:
        """The windows that the broker's settings say. ``prefix``: "", or "controller." for mutations."""
        name = f"{prefix}quota.window"
        seconds = config.integer(f"{name}.size.seconds")
        return cls(samples=config.integer(f"{name}.num"), window_ms=1000 * seconds)


class Rate:
    """An amount a second, over the last windows (Kafka's ``Rate`` over ``WindowedSum``). Of ``REQUEST`` an
    amount is 100 for a second of a thread, so the rate is a percentage; ``bound`` is the quota's rate."""

    __slots__ = ("_taken", "_windows")

    def __init__(self, windows: QuotaWindows) -> None:
        self._windows = windows
        self._taken: deque[list[float]] = deque()  # [begin of the window in ms, amount in it], oldest first

    def record(self, amount: float, now_ms: float) -> None:
        """Add an amount to the window of ``now_ms``; a negative one gives back."""
        taken, windows = self._taken, self._windows
        if not taken or now_ms - taken[-1][0] >= windows.window_ms:
            taken.append([now_ms, 0.0])
            if len(taken) > windows.samples:
                taken.popleft()
        taken[-1][1] += amount

    def value(self, now_ms: float) -> tuple[float, float]:
        """(amount a second, the ms over which it is the mean)."""
        windows, taken = self._windows, self._taken
        while taken and now_ms - taken[0][0] >= windows.samples * windows.window_ms:
            taken.popleft()
        elapsed = now_ms - taken[0][0] if taken else 0.0
        # As in Kafka, the time is at least that of all windows but one: else a single request after a pause
        # would be a high rate.
        missing = windows.samples - 1 - int(elapsed // windows.window_ms)
        over = max(elapsed + max(missing, 0) * windows.window_ms, windows.window_ms)
        return sum(amount for _, amount in taken) * 1000 / over, over

    def throttle_ms(self, bound: float, now_ms: float) -> float:
        """The ms by which the time must grow until the same amount is within the bound; 0 if it is."""
        rate, over = self.value(now_ms)
        return (rate - bound) / bound * over if rate > bound else 0.0


class TokenBucket:
    """Tokens that come at a quota's rate (``bound`` a second), up to as many as come in the time of all
    windows. To take some may leave fewer than 0: then the client has to wait. ``_at_ms``: the time of
    ``_tokens``."""

    __slots__ = ("_at_ms", "_burst_s", "_tokens")

    def __init__(self, windows: QuotaWindows) -> None:
        self._burst_s = windows.samples * windows.window_ms / 1000
        self._tokens = math.inf  # full, whatever the bound
        self._at_ms = 0.0

    def tokens(self, bound: float, now_ms: float) -> float:
        """The number of tokens at ``now_ms``."""
        filled = self._tokens + bound * max(now_ms - self._at_ms, 0.0) / 1000
        self._tokens, self._at_ms = min(filled, bound * self._burst_s), now_ms
        return self._tokens

    def record(self, amount: float, bound: float, now_ms: float) -> None:
        """Take ``amount`` tokens, whether or not there are as many."""
        self._tokens = self.tokens(bound, now_ms) - amount

    def throttle_ms(self, bound: float, now_ms: float) -> float:
        """If the number of tokens is below 0, the ms until it is 0 again; else 0."""
        return max(-self.tokens(bound, now_ms) / bound * 1000, 0.0)


class QuotaGroup(NamedTuple):
    """The clients that share a meter: ``user`` or ``client_id`` is "" where it does not matter, as in the
    tags of Kafka's metrics. For a quota of an address, ``user`` is the address. A long ``client_id`` that has
    the quota of the default id is replaced by its hash: meters should not keep ids of 32 KiB."""

    user: str
    client_id: str


class _ClientQuota(NamedTuple):
    """The quota that holds for a client or an address: ``bound``, a rate, for ``group`` together."""

    group: QuotaGroup
    bound: float


Meter: TypeAlias = Rate | TokenBucket
"""What a group has taken."""


class QuotaTable:
    """The bounds of all clients, from the quotas that are set. It is immutable. ``kinds``: those of which any
    quota is set.

    ``_bounds``: by kind, (user, client id) → bound. "" stands for a part that the quota's entity does not
    have, None for a default. For ``CONNECTION`` the address stands in the place of the user.
    """

    def __init__(self, quotas: Quotas) -> None:
        self._bounds: dict[str, dict[tuple[str | None, str | None], float]] = {kind: {} for kind in KINDS}
        for entity, values in quotas.items():
            parts = dict(entity)
            for kind, key in KINDS.items():
                bound = values.get(key)
                # A file may have a value that Siltstone refuses; it limits nothing.
                if bound is None or not bound > 0 or not math.isfinite(bound):
                    continue
                # An address has only a quota for connections, and only addresses have one.
                if (kind == CONNECTION) != (IP in parts):
                    continue
                user = _plain_address(parts[IP]) if IP in parts else parts.get(USER, "")
                self._bounds[kind][user, parts.get(CLIENT_ID, "")] = bound
        self.kinds = frozenset(kind for kind, bounds in self._bounds.items() if bounds)

    def of_client(self, kind: str, user: str, client_id: str) -> _ClientQuota | None:
        """The quota of a client; None if it has none. A client without an id has the quotas of the default
        id."""
        bounds = self._bounds[kind]
        if not bounds:
            return None
        # The order of the module's docstring. The group has the client's own user and id also where a default
        # matches, since a default is no common quota of all clients that it matches.
        quota_ids = (client_id, None) if client_id else (None,)
        for quota_user in (user, None):
            for quota_id in quota_ids:
                if (bound := bounds.get((quota_user, quota_id))) is not None:
                    return _ClientQuota(QuotaGroup(user, quota_id or _short(client_id)), bound)
            if (bound := bounds.get((quota_user, ""))) is not None:
                return _ClientQuota(QuotaGroup(user, ""), bound)
        for quota_id in quota_ids:
            if (bound := bounds.get(("", quota_id))) is not None:
                return _ClientQuota(QuotaGroup("", quota_id or _short(client_id)), bound)
        return None

    def of_address(self, address: str) -> _ClientQuota | None:
        """The quota of an address, or else the default one; None if there is none."""
        bounds = self._bounds[CONNECTION]
        bound = bounds.get((address, ""), bounds.get((None, "")))
        return None if bound is None else _ClientQuota(QuotaGroup(address, ""), bound)


def _short(client_id: str) -> str:
    """A client id, or its hash if it is longer than ``CLIENT_ID_MAX``."""
    if len(client_id) <= CLIENT_ID_MAX:
        return client_id
    return f"sha256:{hashlib.sha256(client_id.encode('utf-8', 'surrogatepass')).hexdigest()}"


def _plain_address(text: str | None) -> str | None:
    """An address as sockets spell it. None, the default, and text that is no address stay as they are."""
    try:
        return None if text is None else str(ipaddress.ip_address(text))
    except ValueError:
        return text


class ThrottledTotals:
    """Throttling of one kind since the start: how often, and for how many ms."""

    __slots__ = ("milliseconds", "times")

    def __init__(self) -> None:
        self.times = self.milliseconds = 0


class QuotaManager:
    """The quotas of a broker. For any thread.

    ``is_set``: is there any quota of clients? If not, callers need not ask for one.
    ``limits_connections``: is there any quota of addresses? ``totals``: the throttling by kind.
    """

    def __init__(
        self,
        now: Callable[[], float],
        windows: QuotaWindows | None = None,
        controller_windows: QuotaWindows | None = None,
    ) -> None:
        """``now``: returns the time, in seconds; ``controller_windows``: for ``MUTATION``."""
        self._now = now
        self._windows = windows or QuotaWindows()
        self._controller_windows = controller_windows or QuotaWindows()
        self._table = QuotaTable({})
        self._meters: OrderedDict[tuple[str, QuotaGroup], Meter] = OrderedDict()
        self._lock = threading.Lock()
        self.is_set = self.limits_connections = False
        self.totals = {kind: ThrottledTotals() for kind in KINDS}

    def replace(self, quotas: Quotas) -> None:
        """Enforce these quotas from now on; what clients have taken before still counts."""
        table = QuotaTable(quotas)
        with self._lock:
            self._table = table
            self.limits_connections = CONNECTION in table.kinds
            self.is_set = bool(table.kinds - {CONNECTION})

    # Clients

    def bound_of(self, kind: str, context: RequestContext) -> float | None:
        """The bound of a client for a kind of quota, a rate; None: no limit."""
        quota = self._table.of_client(kind, ANONYMOUS, context.client_id or "")
        return None if quota is None else quota.bound

    def record(self, kind: str, context: RequestContext, amount: float) -> int:
        """Count an amount that a client has taken. Returns for how many ms it is to be throttled, 0 if it is
        not."""
        quota = self._table.of_client(kind, ANONYMOUS, context.client_id or "")
        return 0 if quota is None else self._record(kind, quota, amount)

    def used(self, context: RequestContext, seconds: float) -> int:
        """Count the ``seconds`` for which a request has used a thread. Returns as ``record``."""
        return self.record(REQUEST, context, 100 * seconds)

    def give_back(self, kind: str, context: RequestContext, amount: float) -> None:
        """Subtract an amount that was recorded, but that the client did not get after all."""
        quota = self._table.of_client(kind, ANONYMOUS, context.client_id or "")
        if quota is not None:
            with self._lock:
                meter = self._meter(kind, quota.group)
                if isinstance(meter, Rate):
                    meter.record(-amount, self._now() * 1000)

    def fetched_bytes_max(self, context: RequestContext) -> int | None:
        """The most bytes that a response to Fetch may have: those that the quota allows in all windows but
        the current one, as in Kafka. A larger response would exceed the quota by itself. None: no limit."""
        bound = self.bound_of(FETCH, context)
        if bound is None:
            return None
        windows = self._windows
        return int(min(bound * (windows.samples - 1) * windows.window_ms / 1000, INT_MAX))

    def mutations(self, context: RequestContext, strict_from: int) -> MutationQuota:
        """The quota for the mutations of one request. ``strict_from``: the first version of its API whose
        clients know THROTTLING_QUOTA_EXCEEDED; requests in older versions are throttled, not refused."""
        quota = self._table.of_client(MUTATION, ANONYMOUS, context.client_id or "")
        return MutationQuota(self, quota, is_strict=context.version >= strict_from)

    def throttle(self, context: RequestContext, throttle_ms_by_kind: Mapping[str, int]) -> int:
        """Throttle a client, once its request is answered, for the longest of the times. Returns that time,
        in ms."""
        kind = max(throttle_ms_by_kind, key=throttle_ms_by_kind.__getitem__)
        throttle_ms = throttle_ms_by_kind[kind]
        if throttle_ms:
            context.connection.activity.throttle_ms = throttle_ms
            self.throttled(kind, throttle_ms)
        return throttle_ms

    # Addresses

    def connected(self, address: str) -> int:
        """Count a new connection from an address. Returns after how many ms it is to be closed, 0 if it is
        to be served."""
        quota = self._table.of_address(address)
        if quota is None:
            return 0
        throttle_ms = self._record(CONNECTION, quota, 1)
        if throttle_ms:  # the connection is not served, so it does not count
            with self._lock:
                meter = self._meter(CONNECTION, quota.group)
                assert isinstance(meter, Rate)
                meter.record(-1, self._now() * 1000)
        return throttle_ms

    # All

    def throttled(self, kind: str, milliseconds: int) -> None:
        """Count in ``totals`` that a connection is throttled."""
        totals = self.totals[kind]
        with self._lock:
            totals.times += 1
            totals.milliseconds += milliseconds

    def rates(self) -> list[tuple[str, QuotaGroup, float]]:
        """(kind, group, amount a second) of each meter, the least recently used first; of ``MUTATION`` the
        tokens that are left instead of the amount."""
        rates = []
        with self._lock:
            now_ms, table = self._now() * 1000, self._table
            for (kind, group), meter in self._meters.items():
                if isinstance(meter, Rate):
                    rates.append((kind, group, meter.value(now_ms)[0]))
                else:
                    quota = table.of_client(kind, group.user or ANONYMOUS, group.client_id)
                    if quota is not None:
                        rates.append((kind, group, meter.tokens(quota.bound, now_ms)))
        return rates

    def _record(self, kind: str, quota: _ClientQuota, amount: float) -> int:
        """Count an amount in the meter of a quota's group. Returns as ``record``."""
        now_ms = self._now() * 1000
        with self._lock:
            meter = self._meter(kind, quota.group)
            if isinstance(meter, TokenBucket):
                meter.record(amount, quota.bound, now_ms)
            else:
                meter.record(amount, now_ms)
            throttle_ms = meter.throttle_ms(quota.bound, now_ms)
        return self._capped_ms(kind, throttle_ms)

    def _capped_ms(self, kind: str, throttle_ms: float) -> int:
        """A throttle time in whole ms, at most the largest of the kind."""
        limit = self._windows.window_ms if kind in _CAPPED else THROTTLE_MS_MAX
        return int(min(throttle_ms + 0.5, limit))

    def _meter(self, kind: str, group: QuotaGroup) -> Meter:
        """The meter of a group, a new one if there is none. The caller holds the lock."""
        key = kind, group
        meter = self._meters.get(key)
        if meter is None:
            meter = TokenBucket(self._controller_windows) if kind == MUTATION else Rate(self._windows)
            self._meters[key] = meter
            if len(self._meters) > METERS_MAX:
                self._meters.popitem(last=False)
        else:
            self._meters.move_to_end(key)
        return meter

    def take_mutations(self, quota: _ClientQuota, amount: float, *, is_strict: bool) -> tuple[bool, int]:
        """(may the mutations be made?, for how many ms the client is to be throttled).

        A strict quota refuses them if tokens are missing already; if not, they may take any number, and the
        client is not throttled for it. A permissive quota never refuses, and throttles (KIP-599).
        """
        now_ms = self._now() * 1000
        with self._lock:
            meter = self._meter(MUTATION, quota.group)
            assert isinstance(meter, TokenBucket)
            wait_ms = meter.throttle_ms(quota.bound, now_ms)
            if wait_ms > 0 and is_strict:
                return False, self._capped_ms(MUTATION, wait_ms)
            meter.record(amount, quota.bound, now_ms)
            if is_strict:
                return True, 0
            return True, self._capped_ms(MUTATION, meter.throttle_ms(quota.bound, now_ms))


class MutationQuota:
    """The quota for the mutations of one request (Kafka's ``ControllerMutationQuota``). ``throttle_ms``: how
    long its client is to be throttled, 0 if it is not."""

    __slots__ = ("_is_strict", "_manager", "_quota", "throttle_ms")

    def __init__(self, manager: QuotaManager, quota: _ClientQuota | None, *, is_strict: bool) -> None:
        self._manager, self._quota, self._is_strict = manager, quota, is_strict
        self.throttle_ms = 0

    @property
    def is_set(self) -> bool:
        """Has the client a quota?"""
        return self._quota is not None

    def take(self, partitions: int) -> bool:
        """May ``partitions`` partitions be created or deleted? If so, they are counted."""
        if self._quota is None:
            return True
        allowed, throttle_ms = self._manager.take_mutations(
            self._quota, partitions, is_strict=self._is_strict
        )
        self.throttle_ms = max(self.throttle_ms, throttle_ms)
        return allowed
