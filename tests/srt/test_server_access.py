"""Who is let in: keys, wrong hosts, and paths that try to get past them."""

import asyncio

import pytest
from fastapi.routing import APIRoute
from starlette.routing import Route
from support.fake_app import KEY, app_for, check_error
from support.fake_client import FakeClient
from support.http_server import ask

from stolon.srt.server.gate import LOOPBACK_HOSTS, PUBLIC_PATHS


def paths_of(app) -> set[tuple[str, str]]:
    """Every route of the application with each of its methods."""
    assert all(isinstance(route, Route | APIRoute) for route in app.routes)  # no mounts, no routers
    return {(route.path, method) for route in app.routes for method in route.methods}


def test_every_route_but_three_needs_the_key():
    client = FakeClient()
    app = app_for(client, api_key=KEY)
    routes = paths_of(app)
    assert len(routes) >= 15
    assert {"/health", "/ready", "/live"} == PUBLIC_PATHS
    for path, method in routes:
        path = path.replace("{model_id:path}", "fake")
        answer = ask(app, method, path)
        if method == "HEAD":
            assert answer.status_code == 401
            continue
        if path in PUBLIC_PATHS:
            assert answer.status_code == 200
            continue
        assert check_error(answer, 401)["type"] == "authentication_error"
        for headers in ({"x-api-key": KEY}, {"authorization": f"Bearer {KEY}"}):
            assert ask(app, method, path, headers=headers).status_code != 401
    assert client.requests == []
    assert client.flushed == 2


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": KEY},
        {"authorization": "Bearer"},
        {"authorization": f"Basic {KEY}"},
        {"authorization": f"Bearer {KEY}x"},
        {"authorization": b"Bearer \xff\xfe"},
        {"x-api-key": ""},
        {"x-api-key": KEY[:-1]},
    ],
)
def test_wrong_keys(headers):
    check_error(ask(app_for(api_key=KEY), "GET", "/v1/models", headers=headers), 401)


@pytest.mark.parametrize(
    "path",
    [
        "//v1/models",
        "/v1//models",
        "/%2fv1/models",
        "/v1/models/.",
        "/health/../v1/models",
        "/health/",
        "/health%2f..%2fv1/models",
        "/Health",
        "/nope",
        "/openapi.json",
        "/docs",
    ],
)
def test_path_tricks_do_not_get_past_the_key(path):
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"host", b"x/health")],
    }
    sent = []

    async def receive():
        return {"type": "http.request", "body": b""}

    async def send(message):
        sent.append(message)

    asyncio.run(app_for(api_key=KEY)(scope, receive, send))
    assert sent[0]["status"] == 401


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("localhost:8000", 200),
        ("LOCALHOST", 200),
        ("127.0.0.1:80", 200),
        ("[::1]:8000", 200),
        ("evil.example", 403),
        ("localhost.evil.example", 403),
        ("127.0.0.1.evil.example:8000", 403),
        ("", 403),
    ],
)
def test_host_check(host, status):
    app = app_for(allowed_hosts=LOOPBACK_HOSTS)
    answer = ask(app, "GET", "/health", headers={"host": host})
    assert answer.status_code == status
    if status != 200:
        check_error(answer, 403)
