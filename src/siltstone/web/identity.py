"""Who asks, and what that user may do.

::

    siltstone.http.auth=none     every user of this machine is an administrator
    siltstone.http.auth=basic    a file of users: a line ``name:role:scrypt$N$r$p$salt$hash`` each, salt and
                                 hash in base64; ``Authorization: Basic …``. A script's token is a line
                                 ``name:role:sha256$hex`` for ``Authorization: Bearer …``
    siltstone.http.auth=proxy    ``X-Forwarded-User`` and ``X-Forwarded-Groups`` of a trusted proxy

viewer: sees topics, states, settings, but no records. reader: records, too. editor: settings, cleanings,
retries. admin: creates, produces, empties, deletes.
"""

from __future__ import annotations

import base64
import enum
import hashlib
import hmac
import ipaddress
import re
import secrets
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from siltstone.base.errors import UsageError

SCRYPT_N, SCRYPT_R, SCRYPT_P = 1 << 14, 8, 1
"""The cost of new hashes: 16 MiB of memory, about 50 ms."""
SCRYPT_BYTES_MAX, _HASH_BYTES = 256 << 20, 32
"""The most memory that one password may take, and the size of a hash."""
_SHA256 = re.compile("[0-9a-f]{64}")
REMEMBERED_MAX = 256
"""How many correct passwords are remembered at most, as keyed hashes, since scrypt takes 50 ms each time."""


class Role(enum.IntEnum):
    """What a user may do; each role may also do what the roles below it may."""

    NONE = 0
    VIEWER = 1
    READER = 2
    EDITOR = 3
    ADMIN = 4

    @classmethod
    def of(cls, word: str, source: str) -> Role:
        """The role of this name. Raises UsageError."""
        role = {one.name.lower(): one for one in cls if one is not cls.NONE}.get(word.strip().lower())
        if role is None:
            advice = "write viewer, reader, editor or admin"
            raise UsageError(f"there is no role {word[:64]!r}", path=source, advice=advice)
        return role


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """Who asks: ``name`` ("-" without authentication), the role, and the address of the request."""

    name: str
    role: Role
    address: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """A user of the file who has a password. ``secret``: its hash as in the file, ``scrypt$…``."""

    role: Role
    secret: str


def scrypt_hash(password: str, salt: bytes | None = None) -> str:
    """A password as the users' file has it."""
    salt = secrets.token_bytes(16) if salt is None else salt
    digest = _scrypt(password, salt, SCRYPT_N, SCRYPT_R, SCRYPT_P)
    texts = (base64.b64encode(data).decode() for data in (salt, digest))
    return "$".join(("scrypt", str(SCRYPT_N), str(SCRYPT_R), str(SCRYPT_P), *texts))


def _scrypt(password: str, salt: bytes, n: int, r: int, p: int) -> bytes:
    return hashlib.scrypt(
        password.encode(), salt=salt, n=n, r=r, p=p, maxmem=SCRYPT_BYTES_MAX, dklen=_HASH_BYTES
    )


def _token_digest(secret: str, place: str) -> str:
    """The digest in ``sha256$hex``. Raises UsageError, also for that of an empty token, as of a variable that
    was not set: whoever sends ``Authorization: Bearer`` without a token would be this user."""
    digest = secret.partition("$")[2].lower()
    if _SHA256.fullmatch(digest) is None or digest == hashlib.sha256(b"").hexdigest():
        advice = "write sha256$ and the 64 digits that printf %s TOKEN | sha256sum prints"
        raise UsageError("the token's hash is no SHA-256, or that of no token", path=place, advice=advice)
    return digest


class Users:
    """The users of a file: passwords and tokens.

    ``_remembered``: the roles of users whose password was correct, by a hash of name and password with
    ``_key``, which ``_lock`` guards. ``_decoy``: the hash that is compared for a user who does not exist, so
    that the time of the response does not tell whether a user exists.
    """

    def __init__(self, text: str, source: str) -> None:
        """Parse the file. Raises UsageError."""
        self._entries: dict[str, _Entry] = {}
        self._tokens: dict[str, tuple[str, Role]] = {}
        self._key, self._remembered, self._lock = (
            secrets.token_bytes(32),
            dict[bytes, Role](),
            threading.Lock(),
        )
        for number, line in enumerate(text.splitlines(), 1):
            if line.strip() and not line.startswith("#"):
                self._add(line.strip(), f"{source}:{number}")
        self._decoy = scrypt_hash(secrets.token_hex(8))

    def _add(self, line: str, place: str) -> None:
        """Add the user of a line. ``place``: file and line number, for errors. Raises UsageError."""
        name, _, rest = line.partition(":")
        role_text, _, secret = rest.partition(":")
        role, kind = Role.of(role_text, place), secret.partition("$")[0]
        if not name or name in self._entries or kind not in ("scrypt", "sha256"):
            advice = "write name:role:scrypt$… (siltstone serve --hash-password prints it), each name once"
            raise UsageError("the line is not of a user", path=place, advice=advice)
        if kind == "sha256":
            self._tokens[_token_digest(secret, place)] = name, role
            return
        try:
            self._hash_parts(secret)
        except ValueError:
            advice = "siltstone serve --hash-password prints one"
            raise UsageError("the password's hash is damaged", path=place, advice=advice) from None
        self._entries[name] = _Entry(role=role, secret=secret)

    @staticmethod
    def _hash_parts(secret: str) -> tuple[int, int, int, bytes, bytes]:
        """(N, r, p, salt, hash) of a password's hash as in the file. Raises ValueError."""
        _, n, r, p, salt, digest = secret.split("$")
        cost, block, parallel = int(n), int(r), int(p)
        if not (1 < cost <= 1 << 18 and 0 < block <= 32 and 0 < parallel <= 16):
            raise ValueError("out of range")
        # What OpenSSL refuses, too, though only at a login: https://www.rfc-editor.org/rfc/rfc7914#section-2.
        if cost & (cost - 1) or 128 * block * (cost + parallel + 2) > SCRYPT_BYTES_MAX:
            raise ValueError("N is no power of two, or N and r take too much memory")
        data = base64.b64decode(digest, validate=True)
        if len(data) != _HASH_BYTES:
            raise ValueError(f"the hash has not {_HASH_BYTES} bytes")
        return cost, block, parallel, base64.b64decode(salt, validate=True), data

    def _keyed(self, name: str, password: str) -> bytes:
        return hmac.digest(self._key, f"{name}\0{password}".encode("utf-8", "surrogateescape"), "sha256")

    def remembers(self, name: str, password: str) -> bool:
        """Is this password remembered as correct, so that ``with_password`` hashes nothing?"""
        with self._lock:
            return self._keyed(name, password) in self._remembered

    def with_password(self, name: str, password: str) -> Role:
        """The role of a user with this password, else NONE; takes as long for a user who does not exist."""
        keyed = self._keyed(name, password)
        with self._lock:
            if keyed in self._remembered:
                return self._remembered[keyed]
        entry = self._entries.get(name)
        n, r, p, salt, digest = self._hash_parts(self._decoy if entry is None else entry.secret)
        is_right = hmac.compare_digest(_scrypt(password, salt, n, r, p), digest)
        if entry is None or not is_right:
            return Role.NONE
        with self._lock:
            if len(self._remembered) >= REMEMBERED_MAX:
                self._remembered.clear()
            self._remembered[keyed] = entry.role
        return entry.role

    def with_token(self, token: str) -> tuple[str, Role]:
        """The name and the role of a token's user; "-" and NONE for a token that is not in the file."""
        digest = hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()
        return self._tokens.get(digest, ("-", Role.NONE))


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """How users are known: ``auth`` is none, basic or proxy. ``users``: of ``basic``, otherwise None;
    ``trusted``: the networks of the proxies that are trusted, and ``role_of_group``: the roles of the groups
    that they name, both of ``proxy``."""

    auth: str = "none"
    users: Users | None = None
    trusted: tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...] = ()
    role_of_group: Mapping[str, Role] | None = None

    def user_of(self, headers: Mapping[str, str], address: str) -> User:
        """Who sends a request with these headers (names in lower case) from this address."""
        if self.auth == "none":
            return User(name="-", role=Role.ADMIN, address=address)
        if self.auth == "basic":
            name, role = self._by_authorization(headers.get("authorization", ""))
            return User(name=name, role=role, address=address)
        return self._by_proxy(headers, address)

    def must_hash(self, headers: Mapping[str, str]) -> bool:
        """Must a password be hashed to know who sends a request with these headers? That takes 50 ms."""
        if self.users is None or self.auth != "basic":
            return False
        login = _password_of(headers.get("authorization", ""))
        return login is not None and not self.users.remembers(*login)

    def _by_authorization(self, header: str) -> tuple[str, Role]:
        """(Name, role) by the header ``Authorization``; "-" and NONE if it proves no user."""
        assert self.users is not None
        scheme, _, token = header.partition(" ")
        if scheme.lower() == "bearer":
            return self.users.with_token(token.strip())
        login = _password_of(header)
        role = Role.NONE if login is None else self.users.with_password(*login)
        return (login[0] if login and role else "-"), role

    def _by_proxy(self, headers: Mapping[str, str], address: str) -> User:
        """The user whom a trusted proxy names; without one, a user of the role NONE."""
        anonymous = User(name="-", role=Role.NONE, address=address)
        name = headers.get("x-forwarded-user", "").strip()
        if not name or not self.is_trusted(address):
            return anonymous
        groups = (group.strip() for group in headers.get("x-forwarded-groups", "").split(","))
        roles = [role for group in groups if (role := (self.role_of_group or {}).get(group)) is not None]
        # The last address is the one that the trusted proxy has added; a client may have sent the others.
        forwarded = headers.get("x-forwarded-for", "").split(",")[-1].strip()
        return User(name=name[:256], role=max(roles, default=Role.NONE), address=forwarded or address)

    def is_trusted(self, address: str) -> bool:
        """Is this the address of a trusted proxy?"""
        try:
            number = ipaddress.ip_address(address)
        except ValueError:
            return False
        return any(number in network for network in self.trusted)


def _password_of(header: str) -> tuple[str, str] | None:
    """The name and the password in a header ``Authorization: Basic …``; None if it has none."""
    scheme, _, encoded = header.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        name, colon, password = base64.b64decode(encoded, validate=True).decode().partition(":")
    except ValueError:  # no base64, or no UTF-8
        return None
    return (name, password) if colon and len(password) <= 1024 else None


def networks_of(
    texts: Iterable[str], source: str
) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
    """Addresses and networks. Raises UsageError."""
    try:
        return tuple(ipaddress.ip_network(text.strip(), strict=False) for text in texts)
    except ValueError as error:
        raise UsageError(str(error), path=source, advice="write 10.0.0.7 or 10.0.0.0/24") from None


def roles_of(texts: Iterable[str], source: str) -> dict[str, Role]:
    """``GROUP:ROLE`` texts by group. Raises UsageError."""
    roles = {}
    for text in texts:
        group, _, word = text.rpartition(":")
        roles[group.strip()] = Role.of(word, source)
    return roles
