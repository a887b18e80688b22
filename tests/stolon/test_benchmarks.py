"""The parts of the benchmark that can be checked without measuring."""

import copy
import sys

import pytest

from stolon.benchmarks import TARGETS, judge, table
from stolon.benchmarks.measure import Plan, machine, measure, usable_cores
from stolon.benchmarks.process import Worker
from stolon.benchmarks.workload import passage, token_prompts
from stolon.errors import InternalError, InvalidRequest


def engine(rate, **more):
    measures = {
        name: {"tokens_per_second": rate, "seconds": 1.0, "forward_time": 0.9, "sample_time": 0.05}
        for name in ("prefill", "decode_1", "decode_8", "decode_32")
    }
    return {
        "version": "1",
        "settings": {"threads": 2},
        "parameters": 100,
        "rss_loaded": 400,
        "rss_peak": 520,
        "kv_in_use": 20,
        "cold_start_seconds": 3.0,
        "cached_prompt": {"computed": 1, "cached": 511},
        "program": {"seconds": 1.05, "engine_seconds": 1.0, "same_text": True},
        **measures,
        **more,
    }


RESULTS = {
    "machine": machine(),
    "model": "m.gguf",
    "prefill_tokens": 512,
    "repeats": 3,
    "engines": {"stolon": engine(300.0), "llama.cpp": engine(100.0)},
}


def test_all_targets_met():
    assert [verdict.word for verdict in judge(RESULTS)] == ["PASS"] * len(TARGETS)


@pytest.mark.parametrize(
    ("change", "missed"),
    [
        ({"prefill": {"tokens_per_second": 299.0}}, "prefill"),
        ({"decode_1": {"tokens_per_second": 49.0}}, "decode_1"),
        ({"cold_start_seconds": 4.1}, "cold_start"),
        ({"rss_peak": 621}, "memory"),
        ({"cached_prompt": {"computed": 2, "cached": 510}}, "cached_prompt_computes"),
    ],
)
def test_a_missed_target(change, missed):
    results = copy.deepcopy(RESULTS)
    results["engines"]["stolon"].update(change)
    assert [v.target.name for v in judge(results) if v.word == "FAIL"] == [missed]


def test_without_a_peer():
    results = copy.deepcopy(RESULTS)
    del results["engines"]["llama.cpp"]
    words = {verdict.target.name: verdict.word for verdict in judge(results)}
    assert words["prefill"] == "not measured"
    assert words["memory"] == "PASS"
    assert "ratio" not in table(results)


def test_table():
    text = table(RESULTS)
    assert "| prefill of 512 tokens, tokens/s | 300 | 100 | 3.00× |" in text
    assert "program over engine.generate: +5.0% time, same text" in text


def test_prompts_differ_from_their_beginning():
    texts = [passage(i, 4) for i in range(32)]
    assert len({text[:10] for text in texts}) == 32
    prompts = token_prompts(lambda text: list(text.encode()), 4, 64)
    assert {len(ids) for ids in prompts} == {64}
    with pytest.raises(ValueError, match="shorter"):
        token_prompts(lambda text: [1], 1, 64)


ECHO = """
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if message["do"] == "die":
        sys.exit("out of paint")
    print(json.dumps({"error": "no"} if message["do"] == "fail" else message), flush=True)
"""


def test_worker(tmp_path):
    worker = Worker("echo", [sys.executable, "-c", ECHO], log=tmp_path / "log")
    try:
        assert worker.ask("x", a=[1]) == {"do": "x", "a": [1]}
        with pytest.raises(InternalError, match="echo, fail: no"):
            worker.ask("fail")
        with pytest.raises(InternalError, match="ended with status 1") as caught:
            worker.ask("die")
        assert caught.value.hint == "out of paint"
    finally:
        worker.close()


def test_unknown_peer(tmp_path):
    with pytest.raises(InvalidRequest, match="no peer 'x'"):
        measure(Plan(model=tmp_path, peer="x"), say=print)


def test_cores():
    assert 1 <= usable_cores() <= 4096


def test_bench_says_what_needs_a_peer(monkeypatch, tmp_path, capsys):
    from stolon import benchmarks, cli
    from stolon.srt import loaders

    results = copy.deepcopy(RESULTS)
    del results["engines"]["llama.cpp"]
    monkeypatch.setattr(loaders, "resolve", lambda model: tmp_path)
    monkeypatch.setattr(benchmarks, "measure", lambda plan, say: results)
    assert cli.main(["bench", "--quick"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    expected = "not measured: prefill, decode_32, decode_1; they compare with a peer"
    assert last == f"{expected} (--peer llama.cpp)"
    assert cli.main(["bench", "--json", str(tmp_path / "none" / "out.json")]) == 2
    assert "is not a folder" in capsys.readouterr().err
