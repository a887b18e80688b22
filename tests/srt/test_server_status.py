"""What the server says of itself: models, request ids, settings, metrics, liveness."""

import asyncio

import pytest
from support.fake_app import CHAT, HI, KEY, app_for
from support.fake_client import FakeClient
from support.http_server import ask

from stolon.errors import EngineClosed, EngineError
from stolon.srt.server.monitor import EngineMonitor


@pytest.fixture(scope="module")
def app():
    return app_for()


def test_models(app):
    listed = ask(app, "GET", "/v1/models").json()
    assert listed["object"] == "list"
    (model,) = listed["data"]
    assert model == ask(app, "GET", "/v1/models/fake").json()
    assert model["id"] == "fake"
    assert isinstance(model["created"], int)
    assert model["max_model_len"] == 4096


def test_request_ids(app):
    given = ask(app, "GET", "/health", headers={"x-request-id": "abc-1.2:3_4"})
    assert given.headers["x-request-id"] == "abc-1.2:3_4"
    for bad in ("a b", "x" * 129, "a\tb", "é"):
        answer = ask(app, "GET", "/health", headers={"x-request-id": bad.encode()})
        assert answer.headers["x-request-id"].startswith("req_")


def test_server_info_has_no_secrets():
    answer = ask(app_for(api_key=KEY), "GET", "/server_info", headers={"x-api-key": KEY})
    assert answer.status_code == 200
    assert answer.json()["key_required"] is True
    for secret in (KEY, "/secret", "sk-"):
        assert secret not in answer.text


def test_flush_cache():
    client = FakeClient()
    assert ask(app_for(client), "POST", "/flush_cache").json() == {"success": True}
    assert client.flushed == 1


def test_metrics_count_tokens_times_and_statuses():
    client = FakeClient()
    app = app_for(client)
    client.counts.running, client.counts.waiting = 3, 4
    client.counts.kv_used, client.counts.kv_evictable = 800, 300
    client.counts.short_heads, client.counts.skipped_heads = 30, 40
    client.counts.prompt_tokens, client.counts.sampled_tokens = 10, 20
    ask(app, "POST", CHAT, json={"messages": HI, "stream": True})
    ask(app, "POST", CHAT, json={"messages": HI})
    ask(app, "POST", CHAT, content=b"{")
    ask(app, "GET", "/nope")
    lines = ask(app, "GET", "/metrics").text.splitlines()
    for line in (
        "stolon_num_requests_running 3.0",
        "stolon_num_requests_waiting 4.0",
        "stolon_kv_cache_usage_perc 0.5",
        "stolon_prompt_tokens_total 10.0",
        "stolon_generation_tokens_total 20.0",
        "stolon_short_head_rows_total 30.0",
        "stolon_skipped_head_rows_total 40.0",
        "stolon_time_to_first_token_seconds_count 2.0",
        "stolon_inter_token_latency_seconds_count 6.0",
        "stolon_e2e_request_latency_seconds_count 2.0",
        'stolon_request_success_total{finished_reason="stop"} 2.0',
        f'stolon_http_requests_total{{method="POST",route="{CHAT}",status="200"}} 2.0',
        f'stolon_http_requests_total{{method="POST",route="{CHAT}",status="400"}} 1.0',
        'stolon_http_requests_total{method="GET",route="other",status="404"} 1.0',
    ):
        assert line in lines


def test_liveness_follows_progress_not_answers():
    client, now = FakeClient(), [0.0]
    monitor = EngineMonitor(client, window=10, clock=lambda: now[0])

    async def go():
        await monitor.observe()
        now[0] = 100.0
        await monitor.observe()  # idle: nothing to advance
        assert monitor.live
        client.counts.running = 1
        await monitor.observe()
        now[0] = 109.0
        assert monitor.live
        now[0] = 111.0
        await monitor.observe()
        assert not monitor.live  # work, but no step
        client.counts.steps += 1
        await monitor.observe()
        assert monitor.live

        def silent():
            raise EngineError("no answer")

        client.stats = silent
        now[0] = 120.0
        await monitor.observe()
        assert monitor.live  # slow is not dead
        now[0] = 122.0
        assert not monitor.live

        def gone():
            raise EngineClosed("gone")

        client.stats = gone
        await monitor.observe()
        assert monitor.closed

    asyncio.run(go())
