"""Traces for terminals, notebooks and other tools."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from support.fake_engine import FakeEngine

import stolon as sl
from stolon.errors import InternalError, InvalidRequest
from stolon.lang import CallTrace, Prices, TokenCounts, Trace

HOSTILE = '</td><script>alert("1")</script>\n\x1b[31m\ud800&'


def call(**fields: Any) -> CallTrace:
    values: dict[str, Any] = {
        "name": "a",
        "kind": "gen",
        "path": (),
        "where": "p.py:1",
        "finish": "stop",
        "samples": 1,
        "tokens": TokenCounts(computed=3, sampled=2),
        "prompt_tokens": 5,
        "started": 0.0,
        "seconds": 0.1,
    }
    return CallTrace(**(values | fields))


def trace(*calls: CallTrace, **fields: Any) -> Trace:
    return replace(Trace("p", 7, calls, model="m", started_at=1000.0), **fields)


# -- what is recorded ----------------------------------------------------------------------------


def test_what_a_call_records() -> None:
    @sl.function
    def program(s):
        s += "abc" + sl.gen("a", max_tokens=9, temperature=0, stop="!", return_logprob=True)
        s += sl.select("w", ["x", "y"])
        s += sl.gen("b", top_k=4, top_p=0.5)

    run = program.run(backend=FakeEngine(), stream=True)
    run.sync()
    a, w, b = run.trace.calls
    assert (a.prompt_tokens, w.prompt_tokens) == (3, 5)
    assert (a.logprobs, w.logprobs, b.logprobs) == (True, False, False)
    assert a.request
    assert a.parameters["max_tokens"] == 9
    assert a.parameters["temperature"] == 0
    assert a.parameters["stop"] == ["!"]
    assert "top_k" not in a.parameters
    assert (b.parameters["top_k"], b.parameters["top_p"]) == (4, 0.5)
    assert a.first_text is not None
    assert 0 <= a.first_text <= (a.seconds or 0)
    assert w.first_text is None
    assert run.trace.model == "fake"


def test_a_run_that_does_not_stream_has_no_first_text() -> None:
    @sl.function
    def program(s):
        s += sl.gen("a")

    assert program.run(backend=FakeEngine()).trace.calls[0].first_text is None


def test_errors_are_recorded() -> None:
    @sl.function
    def program(s):
        s += sl.gen("a")

    with pytest.raises(InternalError) as error:
        program.run(backend=FakeEngine({"a": InternalError("boom")}))
    found = error.value.state.trace
    assert (found.calls[0].finish, found.calls[0].error) == ("error", "internal_error")
    assert found.calls[0].message == "boom"
    assert "error" in str(found)


@pytest.mark.parametrize("price", [-1, math.nan, math.inf, "a", None, True])
@pytest.mark.parametrize("name", ["input", "output", "cached"])
def test_what_is_no_price_is_refused(name: str, price: Any) -> None:
    if name == "cached" and price is None:
        return
    with pytest.raises(InvalidRequest, match=f"^{name} must be a ") as error:
        Prices(**{"input": 1, "output": 0, name: price})
    assert error.value.param == name


def test_cost() -> None:
    prices = Prices(input=2.0, output=10.0, cached=0.5)
    counts = TokenCounts(cached=400_000, sampled=100_000, forced=100_000)
    found = trace(call(prompt_tokens=1_000_000, tokens=counts))
    assert found.cost() is None
    assert found.cost(prices) == pytest.approx(0.6 * 2 + 0.4 * 0.5 + 0.2 * 10)
    assert found.cost(Prices(input=2.0, output=10.0)) == pytest.approx(2 + 2)
    assert replace(found, prices=prices).as_dict()["calls"][0]["cost"] == pytest.approx(3.4)
    assert "3.400000" in replace(found, prices=prices).tree(120)
    engine = FakeEngine()
    engine.prices = prices  # type: ignore[attr-defined]

    @sl.function
    def program(s):
        s += "abcd" + sl.gen("a")

    assert program.run(backend=engine).trace.cost() == pytest.approx((4 * 2 + 2 * 10) / 1e6)


# -- the tree ------------------------------------------------------------------------------------


def test_columns_are_aligned_and_only_there_if_they_say_something() -> None:
    found = trace(
        call(tokens=TokenCounts(cached=12345, sampled=7)),
        call(name="longer", tokens=TokenCounts(cached=1, forced=20, drafted=6, accepted=4)),
    )
    lines = found.tree(100).splitlines()
    heads = ["cached", "forced", "generated", "drafts", "finish", "time"]
    assert lines[1].split() == heads
    for head in heads[:4]:
        end = lines[1].index(head) + len(head)
        assert all(line[end - 1].isdigit() and line[end : end + 1] in " " for line in lines[2:])
    assert "4/6" in lines[3]
    assert lines[-1].split() == ["total", "12346", "20", "7", "4/6", "0.10", "s"]


@pytest.mark.parametrize("width", [200, 80, 60, 40, 24])
def test_it_fits_the_terminal(width: int) -> None:
    deep = tuple((0, i) for i in range(4))
    counts = TokenCounts(cached=1, computed=2, forced=3, sampled=4, drafted=5, accepted=5)
    found = trace(
        call(name="n" * 50, tokens=counts),
        call(path=deep, tokens=counts),
        prices=Prices(input=1, output=1),
    )
    lines = found.tree(width).splitlines()
    assert max(map(len, lines[1:])) <= width
    assert "generated" in lines[1]
    if width >= 60:
        assert "gen nnnnn" in lines[2]
    assert len(lines) == 3 + 1 + 4 + 1


def test_the_width_is_that_of_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    found = trace(call(name="n" * 100))
    monkeypatch.setenv("COLUMNS", "50")
    assert max(map(len, str(found).splitlines())) <= 50


def test_names_cannot_break_the_tree() -> None:
    lines = trace(call(name=HOSTILE), program=HOSTILE).tree(200).splitlines()
    assert len(lines) == 4
    assert "\x1b" not in "".join(lines)
    "".join(lines).encode()


def test_wide_and_deep_programs_print() -> None:
    wide = trace(*(call(path=((0, i),)) for i in range(5_000)))
    assert len(wide.tree(80).splitlines()) == 10_003
    deep = trace(call(path=tuple((0, 0) for _ in range(1_500))))
    assert deep.tree(80).count("fork") > 0
    assert wide._repr_html_().count("<tr") < 600
    assert "more lines" in wide._repr_html_()


# -- HTML ----------------------------------------------------------------------------------------


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.attributes: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [name for name, _ in attrs]
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_html_is_escaped_and_holds_nothing_active() -> None:
    found = trace(
        call(name=HOSTILE, where=HOSTILE, finish=HOSTILE),
        call(path=((0, 0),), error="x", message=HOSTILE + "' onmouseover='x"),
        program=HOSTILE,
        model=HOSTILE,
    )
    text = found._repr_html_()
    page = Page(text)
    assert page.open == []
    assert set(page.tags) <= {"div", "table", "thead", "tbody", "tr", "th", "td", "span"}
    assert set(page.attributes) <= {"style", "title"}
    assert "<script" not in text
    assert "http" not in text
    assert '</td><script>alert("1")</script>' in page.text
    text.encode()


def test_html_shows_the_calls_and_their_times() -> None:
    found = trace(
        call(name="first", seconds=0.5, queue_time=0.1, prefill_time=0.2, decode_time=0.1),
        call(name="second", started=0.5, seconds=0.5),
    )
    text = found._repr_html_()
    assert "first" in text
    assert "width:10.000%" in text
    assert "width:20.000%" in text
    assert "padding-left:80.0px" in text
    assert "500" in Page(text).text or "0.50 s" in Page(text).text


# -- JSON ----------------------------------------------------------------------------------------


def test_json_has_everything(tmp_path: Path) -> None:
    found = trace(call(path=((0, 1),), parameters={"stop": ["x"]}), call(name=None))
    data = json.loads(found.to_json())
    assert data == json.loads(json.dumps(found.as_dict()))
    assert data["version"] == 1
    assert data["seed"] == 7
    assert data["tokens"]["computed"] == 6
    assert data["calls"][0]["path"] == [[0, 1]]
    assert data["calls"][0]["parameters"] == {"stop": ["x"]}
    assert data["calls"][1]["name"] is None
    for form, key in (("stolon", "version"), ("chrome", "traceEvents"), ("otel", "resourceSpans")):
        found.save(tmp_path / form, format=form)  # type: ignore[arg-type]
        assert key in json.loads((tmp_path / form).read_text())
    found.save(str(tmp_path / "plain.json"))
    with pytest.raises(InvalidRequest, match="stolon, chrome, otel"):
        found.save(tmp_path / "x", format="xml")  # type: ignore[arg-type]
    trace(call(name=HOSTILE), program=HOSTILE).save(tmp_path / "hostile", format="otel")


def test_chrome_events_have_a_lane_for_each_branch_and_nested_phases() -> None:
    found = trace(
        call(seconds=0.5, queue_time=0.1, prefill_time=0.1, decode_time=0.9),
        call(name="b", path=((0, 1),), started=0.5, seconds=0.1, error="x", message="m"),
        call(name="c", path=((0, 1), (2, 0)), started=None, seconds=None),
    )
    events = found.chrome()["traceEvents"]
    lanes = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert list(lanes.values()) == ["main", "fork 0 [1]", "fork 0 [1] / fork 2 [0]"]
    calls = [e for e in events if e.get("cat") == "gen"]
    assert [(e["name"], e["ts"], lanes[e["tid"]]) for e in calls] == [
        ("gen a", 0.0, "main"),
        ("gen b", 500_000.0, "fork 0 [1]"),
    ]
    assert calls[1]["args"]["error"] == "x"
    phases = {e["name"]: (e["ts"], e["ts"] + e["dur"]) for e in events if e.get("cat") in PHASES}
    assert phases["queue"] == (0.0, 100_000.0)
    assert phases["decode"] == (200_000.0, 500_000.0)  # it does not leave its call
    assert all(e["ph"] in "MX" and e["pid"] == 1 for e in events)


PHASES = ("queue", "prefill", "decode")


def spans_of(found: Trace) -> list[dict[str, Any]]:
    spans: list[dict[str, Any]] = found.otel_spans()["resourceSpans"][0]["scopeSpans"][0]["spans"]
    return spans


def attributes(span: dict[str, Any]) -> dict[str, Any]:
    return {a["key"]: next(iter(a["value"].values())) for a in span["attributes"]}


def test_spans_nest_as_the_branches_do() -> None:
    found = trace(
        call(seconds=0.5),
        call(path=((0, 1),), started=0.5, seconds=0.25),
        call(path=((0, 1),), started=0.75, seconds=0.25),
    )
    root, branch, first, second, third = spans_of(found)
    assert "parentSpanId" not in root
    assert (root["name"], branch["name"]) == ("p", "fork 0 [1]")
    assert branch["parentSpanId"] == first["parentSpanId"] == root["spanId"]
    assert second["parentSpanId"] == third["parentSpanId"] == branch["spanId"]
    assert len({span["spanId"] for span in spans_of(found)}) == 5
    assert {span["traceId"] for span in spans_of(found)} == {root["traceId"]}
    assert len(root["traceId"]) == 32
    assert len(root["spanId"]) == 16
    assert root["startTimeUnixNano"] == "1000000000000"
    assert root["endTimeUnixNano"] == "1001000000000"
    assert branch["startTimeUnixNano"] == "1000500000000"
    assert spans_of(found) == spans_of(found)
    assert spans_of(replace(found, seed=8))[0]["traceId"] != root["traceId"]


def test_spans_have_the_attributes_of_the_semantic_conventions() -> None:
    found = trace(
        call(
            tokens=TokenCounts(cached=2, computed=3, forced=1, sampled=2),
            parameters={"temperature": 0.5, "max_tokens": 9, "stop": ["!"], "seed": 2**62},
            samples=3,
            request="r-1",
            first_text=0.25,
        ),
        call(error="overloaded", message="busy", finish="error"),
        provider="openai",
    )
    root, first, second = spans_of(found)
    assert attributes(root) == {
        "gen_ai.operation.name": "invoke_workflow",
        "gen_ai.agent.name": "p",
        "stolon.seed": "7",
    }
    assert (first["name"], first["kind"], root["kind"]) == ("text_completion m", 3, 1)
    has = attributes(first)
    wanted = {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "m",
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.max_tokens": "9",
        "gen_ai.request.seed": str(2**62),
        "gen_ai.request.choice.count": "3",
        "gen_ai.request.stream": True,
        "gen_ai.response.id": "r-1",
        "gen_ai.response.time_to_first_chunk": 0.25,
        "gen_ai.usage.input_tokens": "5",
        "gen_ai.usage.output_tokens": "3",
        "gen_ai.usage.cache_read.input_tokens": "2",
    }
    assert wanted.items() <= has.items()
    assert has["gen_ai.request.stop_sequences"] == {"values": [{"stringValue": "!"}]}
    assert has["gen_ai.response.finish_reasons"] == {"values": [{"stringValue": "stop"}]}
    assert attributes(second)["error.type"] == "overloaded"
    assert second["status"] == {"code": 2, "message": "busy"}
    assert "status" not in first
