"""Enforces quotas: a client that exceeds one gets a throttle time, and its connection is muted for as long.

::

    request ─► response ─► recorded ─► over the quota? throttle_time_ms in the response, which is sent at
                                       once; the connection is muted for as long (KIP-219)

    rate      11 windows of a second: what was taken in them, by their time     bytes, requests, connections
              wait: until what is above the bound would be worked off
    tokens    a bucket that fills with the quota's rate, 11 seconds' worth at most  partitions (KIP-599)

Which quota holds for a client is found in Kafka's order: that of its user and its id, of its user and the
default id, of its user, of the default user and its id, of both defaults, of the default user, of its id, of
the default id. All clients of a user share the user's quota.

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

from siltstone.base.config import Config
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
"""The user of a connection without a password (``KafkaPrincipal.ANONYMOUS``)."""
PRODUCE, FETCH, REQUEST, MUTATION, CONNECTION = "Produce", "Fetch", "Request", "ControllerMutation", "Ip"
"""The kinds of quotas, by the names of Kafka's ``QuotaType``."""
KINDS: Mapping[str, str] = {
    PRODUCE: PRODUCER_BYTE_RATE,
    FETCH: CONSUMER_BYTE_RATE,
    REQUEST: REQUEST_PERCENTAGE,
    MUTATION: CONTROLLER_MUTATION_RATE,
    CONNECTION: CONNECTION_CREATION_RATE,
}
"""The key of the quota that limits it."""
METERS_MAX = 10_000
"""The most rates and buckets that are kept; the one that was used least recently goes. A client may call
itself what it likes."""
THROTTLE_MS_MAX = (1 << 31) - 1
_CAPPED = (REQUEST, CONNECTION)
"""The kinds whose throttle time is one window at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaWindows:
    """``samples`` windows of ``window_ms`` each."""

    samples: int = 11
    window_ms: int = 1_000

    @classmethod
    def of(cls, config: Config, prefix: str = "") -> QuotaWindows:
        """Those of the broker's settings."""
        name = f"{prefix}quota.window"
        seconds = config.integer(f"{name}.size.seconds")
        return cls(samples=config.integer(f"{name}.num"), window_ms=1000 * seconds)


class Rate:
    """A rate a second, over windows (Kafka's ``Rate`` over ``WindowedSum``)."""

    __slots__ = ("_taken", "_windows")

    def __init__(self, windows: QuotaWindows) -> None:
        self._windows = windows
        self._taken: deque[list[float]] = deque()  # [begin of the window in ms, what was taken in it]

    def record(self, amount: float, now_ms: float) -> None:
        """Something was taken; less than nothing gives back."""
        taken, windows = self._taken, self._windows
        if not taken or now_ms - taken[-1][0] >= windows.window_ms:
            taken.append([now_ms, 0.0])
            if len(taken) > windows.samples:
                taken.popleft()
        taken[-1][1] += amount

    def value(self, now_ms: float) -> tuple[float, float]:
        """(what was taken a second, the ms that this is over)."""
        windows, taken = self._windows, self._taken
        while taken and now_ms - taken[0][0] >= windows.samples * windows.window_ms:
            taken.popleft()
        elapsed = now_ms - taken[0][0] if taken else 0.0
        # As if the windows before the first one had been empty, so a burst at the start is no rate.
        missing = windows.samples - 1 - int(elapsed // windows.window_ms)
        over = max(elapsed + max(missing, 0) * windows.window_ms, windows.window_ms)
        return sum(amount for _, amount in taken) * 1000 / over, over

    def throttle_ms(self, bound: float, now_ms: float) -> float:
        """How long until what is above the bound is worked off; 0 if nothing is."""
        rate, over = self.value(now_ms)
        return (rate - bound) / bound * over if rate > bound else 0.0


class TokenBucket:
    """Tokens that are filled up with a quota's rate, to at most what the windows have. Taking may bring them
    below 0."""

    __slots__ = ("_at_ms", "_burst_s", "_tokens")

    def __init__(self, windows: QuotaWindows) -> None:
        self._burst_s = windows.samples * windows.window_ms / 1000
        self._tokens = math.inf  # full, whatever the bound
        self._at_ms = 0.0

    def tokens(self, bound: float, now_ms: float) -> float:
        """How many there are."""
        filled = self._tokens + bound * max(now_ms - self._at_ms, 0.0) / 1000
        self._tokens, self._at_ms = min(filled, bound * self._burst_s), now_ms
        return self._tokens

    def record(self, amount: float, bound: float, now_ms: float) -> None:
        """Take some."""
        self._tokens = self.tokens(bound, now_ms) - amount

    def throttle_ms(self, bound: float, now_ms: float) -> float:
        """How long until there are no fewer than 0."""
        return max(-self.tokens(bound, now_ms) / bound * 1000, 0.0)


class QuotaGroup(NamedTuple):
    """The clients that are counted together: ``user`` or ``client_id`` is "" where it does not matter, as in
    the tags of Kafka's metrics. In a quota of an address, ``user`` is the address. A long ``client_id`` that
    has the quota of the default id is its hash: a meter keeps no 32 KiB."""

    user: str
    client_id: str


class _Bound(NamedTuple):
    group: QuotaGroup
    bound: float


Meter: TypeAlias = Rate | TokenBucket


class QuotaTable:
    """The bounds of all clients, from the quotas that are set. Never changed."""

    def __init__(self, quotas: Quotas) -> None:
        self._of: dict[str, dict[tuple[str | None, str | None], float]] = {kind: {} for kind in KINDS}
        for entity, values in quotas.items():
            parts = dict(entity)
            for kind, key in KINDS.items():
                bound = values.get(key)
                # What a file has that Siltstone would not have taken limits nothing.
                if bound is None or not bound > 0 or not math.isfinite(bound):
                    continue
                if (kind == CONNECTION) != (IP in parts):
                    continue
                user = _plain_address(parts[IP]) if IP in parts else parts.get(USER, "")
                self._of[kind][user, parts.get(CLIENT_ID, "")] = bound
        self.kinds = frozenset(kind for kind, bounds in self._of.items() if bounds)

    def of_client(self, kind: str, user: str, client_id: str) -> _Bound | None:
        """The bound of a client, and whom it is counted with; None if it has none. A client without an id has
        the quotas of the default id."""
        bounds = self._of[kind]
        if not bounds:
            return None
        id_names = (client_id, None) if client_id else (None,)
        for who in (user, None):
            for name in id_names:
                if (bound := bounds.get((who, name))) is not None:
                    return _Bound(QuotaGroup(user, name or _short(client_id)), bound)
            if (bound := bounds.get((who, ""))) is not None:
                return _Bound(QuotaGroup(user, ""), bound)
        for name in id_names:
            if (bound := bounds.get(("", name))) is not None:
                return _Bound(QuotaGroup("", name or _short(client_id)), bound)
        return None

    def of_address(self, address: str) -> _Bound | None:
        """The bound of an address."""
        bounds = self._of[CONNECTION]
        bound = bounds.get((address, ""), bounds.get((None, "")))
        return None if bound is None else _Bound(QuotaGroup(address, ""), bound)


def _short(client_id: str) -> str:
    if len(client_id) <= CLIENT_ID_MAX:
        return client_id
    return f"sha256:{hashlib.sha256(client_id.encode('utf-8', 'surrogatepass')).hexdigest()}"


def _plain_address(text: str | None) -> str | None:
    """An address as sockets spell it."""
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

    ``is_set``: is there any quota but of addresses? Nothing else is asked without one. ``totals``: by kind.
    """

    def __init__(
        self,
        now: Callable[[], float],
        windows: QuotaWindows | None = None,
        controller_windows: QuotaWindows | None = None,
    ) -> None:
        self._now = now
        self._windows = windows or QuotaWindows()
        self._controller_windows = controller_windows or QuotaWindows()
        self._table = QuotaTable({})
        self._meters: OrderedDict[tuple[str, QuotaGroup], Meter] = OrderedDict()
        self._lock = threading.Lock()
        self.is_set = self.limits_connections = False
        self.totals = {kind: ThrottledTotals() for kind in KINDS}

    def replace(self, quotas: Quotas) -> None:
        """Enforce these from now on; what was taken before still counts."""
        table = QuotaTable(quotas)
        with self._lock:
            self._table = table
            self.limits_connections = CONNECTION in table.kinds
            self.is_set = bool(table.kinds - {CONNECTION})

    # Clients

    def bound_of(self, kind: str, context: RequestContext) -> float | None:
        """A client's bound of a kind; None: no limit."""
        quota = self._table.of_client(kind, ANONYMOUS, context.client_id or "")
        return None if quota is None else quota.bound

    def record(self, kind: str, context: RequestContext, amount: float) -> int:
        """A client has taken an amount: for how many ms is it to be throttled? 0: not at all."""
        quota = self._table.of_client(kind, ANONYMOUS, context.client_id or "")
        return 0 if quota is None else self._record(kind, quota, amount)

    def used(self, context: RequestContext, seconds: float) -> int:
        """A request has taken a thread for so long: for how many ms is its client to be throttled?"""
        return self.record(REQUEST, context, 100 * seconds)

    def give_back(self, kind: str, context: RequestContext, amount: float) -> None:
        """Subtract an amount that was recorded and then not used."""
        quota = self._table.of_client(kind, ANONYMOUS, context.client_id or "")
        if quota is not None:
            with self._lock:
                meter = self._meter(kind, quota.group)
                if isinstance(meter, Rate):
                    meter.record(-amount, self._now() * 1000)

    def fetched_bytes_max(self, context: RequestContext) -> int | None:
        """The most bytes that a response to Fetch may have, so that a client within its quota is not
        throttled for one response alone; None: no limit."""
        bound = self.bound_of(FETCH, context)
        if bound is None:
            return None
        windows = self._windows
        return int(min(bound * (windows.samples - 1) * windows.window_ms / 1000, THROTTLE_MS_MAX))

    def mutations(self, context: RequestContext, strict_from: int) -> MutationQuota:
        """The quota for the mutations of one request. ``strict_from``: the first version of its API whose
        clients know that they may be refused; others are only throttled."""
        quota = self._table.of_client(MUTATION, ANONYMOUS, context.client_id or "")
        return MutationQuota(self, quota, is_strict=context.version >= strict_from)

    def throttle(self, context: RequestContext, throttle_ms_by_kind: Mapping[str, int]) -> int:
        """Throttle a client for the longest of these times, by kind, once its request is answered: that
        time in ms."""
        kind = max(throttle_ms_by_kind, key=throttle_ms_by_kind.__getitem__)
        throttle_ms = throttle_ms_by_kind[kind]
        if throttle_ms:
            context.connection.activity.throttle_ms = throttle_ms
            self.throttled(kind, throttle_ms)
        return throttle_ms

    # Addresses

    def connected(self, address: str) -> int:
        """A connection comes from an address: for how many ms is it to be delayed before it is closed? 0: it
        is served."""
        quota = self._table.of_address(address)
        if quota is None:
            return 0
        throttle_ms = self._record(CONNECTION, quota, 1)
        if throttle_ms:
            with self._lock:
                meter = self._meter(CONNECTION, quota.group)
                assert isinstance(meter, Rate)
                meter.record(-1, self._now() * 1000)
        return throttle_ms

    # All

    def throttled(self, kind: str, milliseconds: int) -> None:
        """Count that a connection is throttled."""
        totals = self.totals[kind]
        with self._lock:
            totals.times += 1
            totals.milliseconds += milliseconds

    def rates(self) -> list[tuple[str, QuotaGroup, float]]:
        """(kind, group, rate a second) of each group; of ``MUTATION`` the tokens that are left."""
        rates = []
        with self._lock:
            now_ms, table = self._now() * 1000, self._table
            for (kind, group), meter in self._meters.items():
                if isinstance(meter, Rate):
                    rates.append((kind, group, meter.value(now_ms)[0]))
                else:
                    limit = table.of_client(kind, group.user or ANONYMOUS, group.client_id)
                    if limit is not None:
                        rates.append((kind, group, meter.tokens(limit.bound, now_ms)))
        return rates

    def _record(self, kind: str, quota: _Bound, amount: float) -> int:
        now_ms = self._now() * 1000
        with self._lock:
            meter = self._meter(kind, quota.group)
            if isinstance(meter, TokenBucket):
                meter.record(amount, quota.bound, now_ms)
            else:
                meter.record(amount, now_ms)
            throttle_ms = meter.throttle_ms(quota.bound, now_ms)
        return self._whole(kind, throttle_ms)

    def _whole(self, kind: str, throttle_ms: float) -> int:
        limit = self._windows.window_ms if kind in _CAPPED else THROTTLE_MS_MAX
        return int(min(throttle_ms + 0.5, limit))

    def _meter(self, kind: str, group: QuotaGroup) -> Meter:
        """Under the lock."""
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

    def take_mutations(self, quota: _Bound, amount: float, *, is_strict: bool) -> tuple[bool, int]:
        """(may they be made?, for how many ms the client is to be throttled)."""
        now_ms = self._now() * 1000
        with self._lock:
            meter = self._meter(MUTATION, quota.group)
            assert isinstance(meter, TokenBucket)
            wait_ms = meter.throttle_ms(quota.bound, now_ms)
            if wait_ms > 0 and is_strict:
                return False, self._whole(MUTATION, wait_ms)
            meter.record(amount, quota.bound, now_ms)
            if is_strict:
                return True, 0
            return True, self._whole(MUTATION, meter.throttle_ms(quota.bound, now_ms))


class MutationQuota:
    """The quota for the mutations of one request. ``throttle_ms``: how long its client is to be
    throttled."""

    __slots__ = ("_is_strict", "_manager", "_quota", "throttle_ms")

    def __init__(self, manager: QuotaManager, quota: _Bound | None, *, is_strict: bool) -> None:
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
