"""Which dialect a server speaks: it is asked for what only one kind of server has."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Any

import httpx
import msgspec

from stolon.errors import BackendError, StolonError
from stolon.lang.backends.http import HTTPClient, HTTPOptions, Retries

PROBE_SECONDS = 5.0
_MAX_PROBE_BYTES = 1 << 20

_OWNERS = {
    "vllm": "vllm",
    "sglang": "sglang",
    "llamacpp": "llama-server",
    "tensorrt_llm": "tensorrt-llm",
    "lmdeploy": "lmdeploy",
}
_HOSTS = {"api.openai.com": "openai", "api.anthropic.com": "anthropic"}


@dataclass(frozen=True, slots=True)
class Address:
    """A server's address in two parts.

    Attributes:
        root: where a server's own API is.
        prefix: of OpenAI's API behind the root.
    """

    root: str
    prefix: str

    @classmethod
    def of(cls, base_url: str) -> Address:
        """Of an address with or without the ``/v1`` at its end."""
        url = base_url.rstrip("/")
        if url.endswith("/v1"):
            return cls(url.removesuffix("/v1"), "/v1")
        path = url.partition("://")[2].partition("/")[2]
        return cls(url, "" if path else "/v1")


@dataclass(frozen=True, slots=True)
class Detected:
    """What a server says of itself: its dialect's name, and the models that it lists."""

    dialect: str
    models: tuple[str, ...] = ()


class _Model(msgspec.Struct):
    id: str
    owned_by: str = ""


class _Models(msgspec.Struct):
    data: list[_Model] = []


def known_host(base_url: str) -> str | None:
    """The dialect of a service that its address names."""
    host = httpx.URL(base_url).host
    return "openai" if host.endswith(".openai.azure.com") else _HOSTS.get(host)


async def detect(base_url: str, options: HTTPOptions | None = None) -> Detected:
    """Ask a server. Raises BackendError if it has no API of this kind, or can't be reached."""
    address = Address.of(base_url)
    patient = options or HTTPOptions()
    http = HTTPClient(
        address.root,
        replace(
            patient,
            read_timeout=PROBE_SECONDS,
            connect_timeout=min(patient.connect_timeout, PROBE_SECONDS),
            retries=Retries(count=0),
        ),
    )
    try:
        listed: _Models = await http.json(
            "GET", address.prefix + "/models", kind=_Models, limit=_MAX_PROBE_BYTES
        )
        models = tuple(model.id for model in listed.data)
        owners = {model.owned_by for model in listed.data}
        return Detected(known_host(base_url) or await _kind(http, owners), models)
    finally:
        await http.aclose()


async def _kind(http: HTTPClient, owners: set[str]) -> str:
    named = next((_OWNERS[owner] for owner in owners if owner in _OWNERS), None)
    if named is not None and named != "vllm":
        return named
    metadata, version, props, description, lmstudio, sglang = await asyncio.gather(
        *(
            _object(http, path)
            for path in (
                "/v1/metadata",
                "/api/version",
                "/props",
                "/openapi.json",
                "/api/v0/models",
                "/get_model_info",
            )
        )
    )
    if "modelInfo" in metadata:  # NIM serves some models with vLLM
        return "nim"
    if named is not None:
        return named
    if "version" in version:
        return "ollama"
    if "default_generation_settings" in props:
        return "llama-server"
    if "llama.cpp Python API" in str(description.get("info", "")):
        return "llama-cpp-python"
    if "model_path" in sglang:
        return "sglang"
    return "lmstudio" if "data" in lmstudio else "compatible"


async def _object(http: HTTPClient, path: str) -> dict[str, Any]:
    """The JSON object at a path, empty where there is none."""
    try:
        found = await http.json("GET", path, limit=_MAX_PROBE_BYTES)
    except StolonError:
        return {}
    return found if isinstance(found, dict) else {}


def the_model(detected: Detected, server: str) -> str:
    """The only model of a server. Raises BackendError that lists them if there are several, or none."""
    if len(detected.models) == 1:
        return detected.models[0]
    if not detected.models:
        raise BackendError(f"{server} lists no model", hint="name one")
    shown = ", ".join(detected.models[:10])
    raise BackendError(f"{server} serves several models: {shown}", hint="name one")
