"""Who a request comes from, and where a server may listen."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

import pytest

from siltstone.base.config import Config, parse_broker_config
from siltstone.base.errors import UsageError
from siltstone.web.identity import Identity, Role, Users, networks_of, roles_of, scrypt_hash
from siltstone.web.running import Listener, identity_of, refuse_unsafe, rules_of

HASH = base64.b64encode(bytes(32)).decode()


def _basic(name: str, password: str) -> dict[str, str]:
    return {"authorization": "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()}


def _config(**settings: str) -> Config:
    names = {f"siltstone.http.{name.replace('_', '.')}": value for name, value in settings.items()}
    return Config(static=parse_broker_config(names, "test"))


def test_a_password_and_a_token_are_known() -> None:
    token = hashlib.sha256(b"t0ken").hexdigest()
    users = Users(f"# ours\nada:editor:{scrypt_hash('s:ecret')}\nci:reader:sha256${token}\n", "users")
    identity = Identity(auth="basic", users=users)
    for _ in range(2):  # the second time from memory
        user = identity.user_of(_basic("ada", "s:ecret"), "10.0.0.1")
        assert (user.name, user.role, user.address) == ("ada", Role.EDITOR, "10.0.0.1")
    assert identity.user_of(_basic("ada", "wrong"), "").role is Role.NONE
    assert identity.user_of(_basic("eve", "s:ecret"), "").role is Role.NONE
    assert identity.user_of({"authorization": "Bearer t0ken"}, "").role is Role.READER
    assert identity.user_of({"authorization": "Bearer other"}, "").role is Role.NONE
    assert identity.user_of({}, "").role is Role.NONE


@pytest.mark.parametrize(
    "line",
    [
        "ada",
        "ada:king:scrypt$1$1$1$$",
        "ada:editor:plain",
        "ada:editor:scrypt$16384$8$1$!$!",
        ":editor:scrypt$",
        "ada:editor:scrypt$99999999999$8$1$c2FsdA==$c2FsdA==",
        f"ada:editor:scrypt$1000$8$1$c2FsdA==${HASH}",
        f"ada:editor:scrypt${1 << 18}$8$1$c2FsdA==${HASH}",
        f"ada:editor:scrypt${1 << 17}$32$1$c2FsdA==${HASH}",
        "ada:editor:scrypt$16384$8$1$c2FsdA==$c2FsdA==",
        f"ci:admin:sha256${hashlib.sha256(b'').hexdigest()}",
        f"ci:admin:sha256${hashlib.sha256(b't').hexdigest()}  -",
        "ci:admin:sha256$",
    ],
)
def test_a_bad_line_of_the_users_file_is_named(line: str) -> None:
    with pytest.raises(UsageError) as caught:
        Users(f"\n{line}\n", "users")
    assert caught.value.path == "users:2"


@pytest.mark.parametrize(("n", "r", "p"), [(2, 1, 16), (1 << 17, 15, 1)])
def test_a_hash_that_is_taken_can_be_computed(n: int, r: int, p: int) -> None:
    users = Users(f"ada:editor:scrypt${n}${r}${p}$c2FsdA==${HASH}\n", "users")
    assert users.with_password("ada", "wrong") is Role.NONE


def test_only_a_trusted_proxy_names_users() -> None:
    identity = Identity(
        auth="proxy",
        trusted=networks_of(["10.0.0.0/24"], "test"),
        role_of_group=roles_of(["ops:admin", "dev:reader"], "test"),
    )
    headers = {
        "x-forwarded-user": "ada",
        "x-forwarded-groups": "dev, ops",
        "x-forwarded-for": "9.9.9.9, 8.8.8.8",
    }
    user = identity.user_of(headers, "10.0.0.7")
    assert (user.name, user.role, user.address) == ("ada", Role.ADMIN, "8.8.8.8")
    assert identity.user_of(headers, "10.0.1.7").role is Role.NONE
    assert identity.user_of(headers, "testclient").role is Role.NONE
    assert identity.user_of({**headers, "x-forwarded-groups": "x"}, "10.0.0.7").role is Role.NONE
    assert identity.user_of({"x-forwarded-groups": "ops"}, "10.0.0.7").role is Role.NONE


@pytest.mark.parametrize(
    ("url", "settings", "is_refused"),
    [
        ("http://127.0.0.1:1", {}, False),
        ("http://[::1]:1", {}, False),
        ("http://0.0.0.0:1", {}, True),
        ("http://[::]:1", {}, True),
        ("http://example.com:1", {}, True),
        ("https://0.0.0.0:1", {}, True),
        ("http://0.0.0.0:1", {"auth": "basic"}, True),
        ("https://0.0.0.0:1", {"auth": "basic"}, False),
        ("http://0.0.0.0:1", {"auth": "proxy"}, False),
        ("http://0.0.0.0:1", {"insecure": "true"}, False),
    ],
)
def test_an_address_that_others_reach_needs_authentication_and_tls(
    url: str, settings: dict[str, str], is_refused: bool
) -> None:
    listener, config = Listener.parse(url), _config(**settings)
    if is_refused:
        with pytest.raises(UsageError, match="reaches other machines"):
            refuse_unsafe(listener, config)
    else:
        refuse_unsafe(listener, config)


@pytest.mark.parametrize(
    "text", ["", "8082", "ftp://a:1", "http://a", "http://a:b", "http://a:1/x", "http://:1"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        Listener.parse(text)


def test_settings_that_lack_something_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no proxy is trusted"):
        identity_of(_config(auth="proxy"))
    with pytest.raises(UsageError, match=r"siltstone\.http\.users"):
        identity_of(_config(auth="basic", users=str(tmp_path / "none")))
    with pytest.raises(UsageError, match="role"):
        identity_of(_config(proxy_roles="ops:king"))


def test_the_listeners_name_and_the_configured_hosts_are_known() -> None:
    rules = rules_of(_config(hosts="Console.Example"), [Listener.parse("http://127.0.0.2:1")])
    assert rules.hosts == {"localhost", "127.0.0.1", "::1", "127.0.0.2", "console.example"}
