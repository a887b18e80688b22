"""Request bodies: read under a size cap, checked for nesting, decoded into typed structs.

msgspec refuses NaN, numbers out of range, lone surrogates and bytes that are not UTF-8; its
messages name the type and the path of the fault, never the value. A key that comes twice in one object,
of which msgspec keeps the last value, is refused here.
"""

from __future__ import annotations

import re
from typing import TypeVar

import anyio.to_thread
import msgspec
from starlette.requests import ClientDisconnect, Request

from stolon.errors import InvalidRequest
from stolon.srt.server.errors import HTTPFailure
from stolon.srt.server.limits import ServerLimits

T = TypeVar("T")

_INLINE_BYTES = 64 * 1024  # larger bodies are decoded in a worker thread
# The closing quote is optional and the quantifiers possessive, so a string is scanned once whatever
# it holds.
_BRACKETS = re.compile(rb'[\[{]|[\]}]|"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
# What precedes a string, the string, and whether it is a key; at the end there is no string. Each byte is
# looked at once. Of a body without escaped quotes.
_STRING = re.compile(rb'([^"]*+)(?:"([^"]*+)"(?=\s*+(:)?))?')
_NO_BRACES = bytes(set(range(256)) - set(b"{}"))
# Bytes that valid JSON does not have, in the place of the escapes that would hide where a string ends.
_ESCAPES = ((rb"\\", b"\0"), (rb"\"", b"\1"))
# Up to the first escape of half a surrogate pair.
_LONE = re.compile(
    rb"(?:[^\\]++|\\[^u]|\\u(?![dD][89a-fA-F])|\\u[dD][89abAB]..\\u[dD][c-fC-F]..)*+"
    rb"(\\u[dD][89a-fA-F][0-9a-fA-F]{2})",
    re.DOTALL,
)
_NUMBERS = re.compile(rb"-?(?:NaN|Infinity)")  # Python's, which its `json` module writes
_PLACE = re.compile(r"\(byte (\d+)\)$")
_PATH = re.compile(r"^(.*) - at `\$\.?(.*)`$", re.DOTALL)


async def read_body(request: Request, limits: ServerLimits) -> bytes:
    """The whole body. Raises HTTPFailure 413 as soon as it is known to be too large."""
    too_large = HTTPFailure(
        413,
        "request_too_large",
        f"The request body is larger than {limits.max_body_bytes} bytes.",
        headers={"connection": "close"},
    )
    announced = request.headers.get("content-length", "0")
    if announced.isdigit() and int(announced) > limits.max_body_bytes:
        raise too_large
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > limits.max_body_bytes:
                raise too_large
    except ClientDisconnect:
        raise HTTPFailure(400, "client_disconnected", "The request body is incomplete.") from None
    return bytes(body)


async def parse_body(body: bytes, kind: type[T], limits: ServerLimits) -> T:
    """Decode a JSON body as `kind`. Raises InvalidRequest with the field's path as param."""
    if len(body) <= _INLINE_BYTES:
        return decode(body, kind, limits)
    return await anyio.to_thread.run_sync(decode, body, kind, limits)


def decode(body: bytes, kind: type[T], limits: ServerLimits) -> T:
    """The synchronous part of `parse_body`."""
    if not body.strip():
        raise InvalidRequest("the request has no body; a JSON object is expected")
    _check_nesting(body, limits)
    try:
        value = msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        message, param = _split(str(error))
        raise InvalidRequest(message, param=param) from None
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        reason = malformed(body, str(error))
        raise InvalidRequest(f"the request body is not valid JSON: {reason}") from None
    _check_keys(body)
    return value


def malformed(body: bytes, error: str) -> str:
    """Why msgspec took no value from JSON text, and where. Of `error`, msgspec's own message."""
    reason = error.removeprefix("JSON is malformed: ")
    cut = reason == "Input data was truncated"  # also said of half a pair close to the end
    if cut or "surrogate" in reason:
        lone = _LONE.match(body)
        if lone is not None:
            return f"{lone[1].decode()} in a string is a lone surrogate (byte {lone.start(1)})"
    if cut:
        return f"it is cut off (byte {len(body)})"
    if (place := _PLACE.search(reason)) is not None:
        at = int(place[1])
        for word in _NUMBERS.finditer(body, max(at - 2, 0), at + 9):
            if word.start() <= at < word.end():
                return f"{word[0].decode()} is no JSON number (byte {word.start()})"
    return reason


def _check_keys(body: bytes) -> None:
    """Refuse a key that comes twice in one object of a body, which is valid JSON."""
    escaped = b"\\" in body
    for escape, mark in _ESCAPES if escaped else ():
        body = body.replace(escape, mark)
    outer: list[tuple[set[bytes], bytes]] = []
    keys: set[bytes] = set()
    key = b""
    for match in _STRING.finditer(body):
        before, text, is_key = match.groups()
        for brace in before.translate(None, _NO_BRACES):
            if brace == ord("{"):
                outer.append((keys, key))
                keys, key = set(), b""
            else:
                keys, key = outer.pop()
        if not is_key:
            continue
        key = msgspec.json.encode(_name(text))[1:-1] if escaped else text
        if key in keys:
            path = ".".join(_name(name) for name in (*(name for _, name in outer[1:]), key))
            raise InvalidRequest(
                f"the key {_name(key)!r} occurs twice in one JSON object", param=path[:128]
            )
        keys.add(key)


def _name(key: bytes) -> str:
    """A key as it is meant."""
    for escape, mark in _ESCAPES:
        key = key.replace(mark, escape)
    name: str = msgspec.json.decode(b'"' + key + b'"')
    return name


def _check_nesting(body: bytes, limits: ServerLimits) -> None:
    openers = body.count(b"[") + body.count(b"{")
    if openers <= limits.max_json_depth:
        return
    depth = containers = 0
    for match in _BRACKETS.finditer(body):
        char = body[match.start()]
        if char in b"[{":
            depth += 1
            containers += 1
            if depth > limits.max_json_depth:
                raise InvalidRequest(f"the JSON is nested deeper than {limits.max_json_depth}")
            if containers > limits.max_json_containers:
                raise InvalidRequest(
                    f"the JSON has more than {limits.max_json_containers} arrays and objects"
                )
        elif char in b"]}":
            depth -= 1


def _split(text: str) -> tuple[str, str | None]:
    """msgspec's ``message - at `$.a.b``` as (message, ``a.b``)."""
    match = _PATH.match(text)
    message, param = (match[1], match[2] or None) if match else (text, None)
    if param is None and (unknown := re.search(r"field `([^`]{1,64})`", message)):
        param = unknown[1]
    if param is not None:
        message = f"{param}: {message}" if match else message
        param = param[:128]
    return message, param
