"""How a server is talked to: its address, timeouts, limits, retries and what is trusted."""

from __future__ import annotations

import ipaddress
import random
import re
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from stolon.errors import InvalidRequest

_HOST = re.compile(r"(?=.{1,253}$)([\w-]{1,63}\.)*[\w-]{1,63}\.?", re.ASCII)

_USER = re.compile(r"([^/?#]*//)?[^/?#]*@")
_NAME = re.compile(r"[!#$%&'*+.^`|~\w-]+", re.ASCII)
_VALUE = re.compile(r"([!-~]([\t -~]*[!-~])?)?")


def _check_count(name: str, value: Any, *, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InvalidRequest(
            f"{name} must be a whole number, {least} or more, not {value!r}", param=name
        )


def _check_seconds(name: str, value: Any, *, zero: bool = False) -> None:
    """A wait may be 0; a time limit of 0 would always be over."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not (value > 0 or (zero and value == 0)):
        bound = "0 or more" if zero else "more than 0"
        raise InvalidRequest(
            f"{name} must be a number of seconds, {bound}, not {value!r}", param=name
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """How often, and after which waits, a request is sent again. Times in seconds.

    Attributes:
        count: further attempts after the first one; 0 is none. A server that has never accepted
            a connection gets those that fit into a second.
        first_wait: before the second attempt, then twice as long each time. Each wait is shortened at
            random by up to a half: clients that failed together do not come back together.
        longest_wait: no wait is longer, and a server that asks for a longer one is not asked again.
    """

    count: int = 4
    first_wait: float = 0.25
    longest_wait: float = 30.0

    def __post_init__(self) -> None:
        _check_count("retries", self.count, least=0)
        _check_seconds("first_wait", self.first_wait, zero=True)
        _check_seconds("longest_wait", self.longest_wait, zero=True)

    def wait(self, attempt: int, asked: float | None) -> float | None:
        """Seconds before attempt `attempt` + 1 (the first is 0), None if there is none."""
        if attempt >= self.count or (asked is not None and asked > self.longest_wait):
            return None
        own = min(self.first_wait * 2.0**attempt, self.longest_wait) * random.uniform(0.5, 1.0)
        return own if asked is None else max(own, asked * random.uniform(1.0, 1.1))


@dataclass(frozen=True, slots=True, kw_only=True)
class HTTPOptions:
    """How a server is talked to. Times in seconds, more than 0.

    Attributes:
        api_key: sent as ``Authorization: Bearer``, unless `headers` has an Authorization.
        verify: False accepts any TLS certificate; a path names a file of certificates to trust.
        connect_timeout: for a connection to come about.
        read_timeout: for the next byte of an answer; None waits for ever.
        max_connections: requests under way at the same time.
        headers: further headers of every request.
        transport: what carries requests, for tests.
    """

    api_key: str | None = field(default=None, repr=False)
    verify: bool | str | None = None
    connect_timeout: float = 10.0
    read_timeout: float | None = 120.0
    max_connections: int = 512
    retries: Retries = Retries()
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    transport: Callable[[], httpx.AsyncBaseTransport] | None = None

    def __post_init__(self) -> None:
        _check_count("max_connections", self.max_connections, least=1)
        _check_seconds("connect_timeout", self.connect_timeout)
        if self.read_timeout is not None:
            _check_seconds("read_timeout", self.read_timeout)
        if not isinstance(self.retries, Retries):
            raise InvalidRequest("retries must be a Retries", param="retries")
        if self.api_key is not None:
            checked_key(self.api_key)
        _check_headers(self.headers)


def checked_key(key: str) -> str:
    """A key that a header can hold. Raises InvalidRequest, which does not show it."""
    if not isinstance(key, str):
        raise InvalidRequest("api_key must be a string", param="api_key")
    if not key:
        raise InvalidRequest("api_key is empty", param="api_key", hint="None is no key")
    if not _VALUE.fullmatch(key):
        raise InvalidRequest(
            "api_key must be printable ASCII, without blanks or line ends around it",
            param="api_key",
        )
    return key


def _check_headers(headers: Mapping[str, str]) -> None:
    if not isinstance(headers, Mapping) or not all(
        isinstance(word, str) for pair in headers.items() for word in pair
    ):
        raise InvalidRequest("headers must map strings to strings", param="headers")
    for name, value in headers.items():
        # Neither is shown where the other one may hold a key.
        if not _NAME.fullmatch(name):
            raise InvalidRequest("headers has a name that is none of HTTP's", param="headers")
        if not _VALUE.fullmatch(value):
            raise InvalidRequest(
                f"headers: the value of {name} must be printable ASCII on one line, without blanks "
                "around it",
                param="headers",
            )


def checked_address(url: str) -> httpx.URL:
    """An address that a request can be sent to. Raises InvalidRequest for anything else."""
    if not isinstance(url, str):
        raise InvalidRequest(f"{url!r} is not an address: it is no string", param="base_url")
    if _USER.match(url):  # before the address is shown in any error
        raise InvalidRequest(
            "an address must not hold a name or password", param="base_url", hint="give api_key"
        )
    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, ValueError) as error:
        raise InvalidRequest(f"{url!r} is not an address: {error}", param="base_url") from None
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise InvalidRequest(
            f"{url!r} is not an address of a server",
            param="base_url",
            hint="it begins with http:// or https://",
        )
    host, port = parsed.raw_host.decode("ascii"), parsed.port
    if not (":" in host or _HOST.fullmatch(host)):
        raise InvalidRequest(f"{url!r} has no host that can be looked up", param="base_url")
    if port is not None and not 1 <= port <= 65535:
        raise InvalidRequest(f"{url!r} has no port from 1 to 65535", param="base_url")
    if parsed.query or parsed.fragment:
        raise InvalidRequest(f"{url!r} has a query or a fragment", param="base_url")
    return parsed


def is_loopback(url: httpx.URL) -> bool:
    if url.host == "localhost":
        return True
    try:
        return ipaddress.ip_address(url.host).is_loopback
    except ValueError:
        return False


def trust(verify: bool | str | None) -> bool | ssl.SSLContext:
    """What httpx takes: a bool, or an SSL context with the given certificates."""
    if not isinstance(verify, str):
        return verify is not False
    try:
        return ssl.create_default_context(cafile=verify)
    except OSError as error:
        raise InvalidRequest(
            f"the certificates in {verify} can't be read: {error.strerror or error}", param="verify"
        ) from error
