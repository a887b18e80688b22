"""The application over a fake engine, and the shape that all its errors have."""

from __future__ import annotations

from typing import Any

import httpx
from fastapi import FastAPI
from support.fake_client import FakeClient

from stolon.srt.server import create_app

CHAT = "/v1/chat/completions"
HI = [{"role": "user", "content": "Hi"}]
KEY = "sk-secret"


def app_for(client: FakeClient | None = None, **options: Any) -> FastAPI:
    return create_app(client or FakeClient(), served_name="fake", **options)


def check_error(answer: httpx.Response, status: int) -> dict[str, Any]:
    """The error of an answer that has `status`, all fields of an error, and nothing of the inside."""
    assert answer.status_code == status, answer.text
    body = answer.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert isinstance(body["error"]["message"], str)
    assert isinstance(body["error"]["code"], str)
    assert answer.headers["x-request-id"]
    assert len(answer.text) < 1000
    for secret in ("Traceback", "/secret", "site-packages", ".py"):
        assert secret not in answer.text
    error: dict[str, Any] = body["error"]
    return error
