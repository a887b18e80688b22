"""`stolon bench engine` judges its results by the targets, and shows them as a table and a plot."""

import copy
import io
import json
import sys

import pytest

from stolon.benchmarks import TARGETS, judge, table
from stolon.benchmarks.machine import machine
from stolon.benchmarks.plot import plot
from stolon.benchmarks.targets import best_peer, findings
from stolon.benchmarks.workload import (
    RATES,
)


def engine(rate, **more):
    measures = {
        name: {
            "tokens_per_second": rate,
            "seconds": 1.0,
            "forward_time": 0.93,
            "sample_time": 0.05,
            "step_time": 1.0,
        }
        for name in RATES
    }
    measures["decode_1"]["bandwidth"] = 36000.0
    quality = {"mean": 1 / rate, "standard_error": 0.001, "max": 1.0, "positions": 2048}
    return {
        "version": "1",
        "settings": {"threads": 2},
        "parameters": 100,
        "load_seconds": 0.4,
        "import_seconds": 2.0,
        "rss_imported": 300,
        "rss_loaded": 400,
        "rss_peak": 520,
        "kv_resident": 20,
        "cold_start_seconds": 3.0,
        "cached_prompt": {"computed": 1, "cached": 511},
        "program": {"seconds": 1.05, "engine_seconds": 1.0, "same_text": True},
        "quality": {"prompt": quality, "decode": quality},
        **measures,
        **more,
    }


RESULTS = {
    "machine": machine(),
    "model": "m.gguf",
    "model_bytes": 160,
    "bandwidth": 36000.0,
    "bytes_per_token": 100,
    "repeats": 3,
    "engines": {"stolon": engine(300.0), "llama.cpp": engine(100.0), "openvino": engine(80.0)},
    "missing": {"vllm": "ModuleNotFoundError: No module named 'vllm'"},
}


def changed(change):
    results = copy.deepcopy(RESULTS)
    results["engines"]["stolon"].update(change)
    return results


def missed(results):
    return [verdict.target.name for verdict in judge(results) if verdict.word == "FAIL"]


def test_all_targets_met():
    words = [verdict.word for verdict in judge(RESULTS)]
    # One of the two targets of loading is for larger models.
    assert words == ["PASS"] * (len(TARGETS) - 1)


STEP = {"seconds": 1.0, "forward_time": 0.9, "sample_time": 0.05, "step_time": 1.0}


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"prefill": {"tokens_per_second": 149.0}}, ["prefill"]),
        ({"shared": {"tokens_per_second": 299.0}}, ["shared"]),
        (
            {"decode_1": {"tokens_per_second": 200.0, "bandwidth": 36000.0, **STEP}},
            ["bandwidth_share", "outside_kernels"],
        ),
        ({"decode_8": {"tokens_per_second": 159.0, **STEP}}, ["decode_8", "outside_kernels"]),
        ({"load_seconds": 0.51}, ["load"]),
        ({"cold_start_seconds": 4.1}, ["cold_start"]),
        ({"rss_peak": 529}, ["memory"]),
        ({"cached_prompt": {"computed": 2, "cached": 510}}, ["cached_prompt_computes"]),
        (
            {"quality": {"prompt": {"mean": 0.001}, "decode": {"mean": 0.011}}},
            ["divergence"],
        ),
    ],
)
def test_a_missed_target(change, names):
    assert missed(changed(change)) == names


def test_larger_models_may_load_longer():
    change = {"load_seconds": 1.4, "parameters": 5e8}
    assert missed(changed(change)) == []
    assert missed(changed({**change, "load_seconds": 1.6})) == ["load"]


def test_ratios_are_against_the_best_peer_of_each_row():
    results = copy.deepcopy(RESULTS)
    results["engines"]["openvino"]["decode_8"]["tokens_per_second"] = 250.0
    results["engines"]["llama.cpp"]["decode_32"] = {"error": "no"}
    assert best_peer(results, "decode_8") == 250.0
    assert best_peer(results, "decode_32") == 80.0
    assert findings(results)["decode_8"] == 1.2


def test_without_a_peer():
    results = copy.deepcopy(RESULTS)
    results["engines"] = {"stolon": results["engines"]["stolon"]}
    results["missing"] = {}
    words = {verdict.target.name: verdict.word for verdict in judge(results)}
    assert words["prefill"] == words["divergence"] == "not measured"
    assert words["memory"] == words["bandwidth_share"] == "PASS"
    assert "best peer |" not in table(results).partition("| target |")[0]


def test_table():
    results = copy.deepcopy(RESULTS)
    results["engines"]["openvino"]["shared"] = {"error": "out of cache"}
    del results["engines"]["openvino"]["quality"]
    text = table(results)
    assert "| | stolon | llama.cpp | openvino | vllm | against the best peer |" in text
    assert "| prefill of 512 tokens, tokens/s | 300 | 100 | 80 | – | 3.00× |" in text
    assert "| 300 | 100 | – | – | 3.00× |" in text
    assert "vllm: not measured: ModuleNotFoundError: No module named 'vllm'" in text
    assert "openvino, shared: not measured: out of cache" in text
    assert "| 0.003333 ± 0.001000 | 0.010000 ± 0.001000 | – | – |  |" in text
    assert "program over engine.generate: +5.0% time, same text" in text
    rows = text.partition("| target |")[0].splitlines()
    assert {line.count("|") for line in rows if line.startswith("|")} == {7}


def test_plot(tmp_path):
    pytest.importorskip("matplotlib")
    results = copy.deepcopy(RESULTS)
    results["engines"]["openvino"]["shared"] = {"error": "out of cache"}
    plot([results, RESULTS], tmp_path / "out.png")
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


@pytest.fixture
def command(monkeypatch, tmp_path):
    """The command with `measure` replaced; returns the plans that it made."""
    from stolon import benchmarks
    from stolon.srt import loaders

    plans = []

    def fake_measure(plan, say):
        plans.append(plan)
        results = copy.deepcopy(RESULTS)
        if not plan.peers:
            results["engines"] = {"stolon": results["engines"]["stolon"]}
            results["missing"] = {}
        return results

    monkeypatch.setattr(loaders, "resolve", lambda model: tmp_path / model)
    monkeypatch.setattr(loaders, "open_model", lambda path: io.BytesIO())
    monkeypatch.setattr(benchmarks, "measure", fake_measure)
    return plans


def test_bench_says_what_needs_a_peer(command, tmp_path, capsys):
    from stolon import cli

    assert cli.main(["bench", "--quick"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("not measured: prefill, decode_1, decode_8, decode_32, shared, diver")
    assert last.endswith("they compare with peers (--peers llama.cpp,openvino,vllm)")
    assert cli.main(["bench", "--json", str(tmp_path / "none" / "out.json")]) == 2
    assert "is not a folder" in capsys.readouterr().err


def test_bench_of_two_models_with_peers(command, tmp_path, capsys):
    from stolon import cli

    out = tmp_path / "out.json"
    peers = ["--peers", "llama.cpp,openvino", "--peers", "vllm"]
    pythons = ["--peer-python", f"vllm={sys.executable}", "--peer-python", "/bin/sh"]
    models = ["--model", "a", "--model", "b"]
    assert cli.main(["bench", "engine", *peers, *pythons, *models, "--json", str(out)]) == 0
    assert [plan.model.name for plan in command] == ["a", "b"]
    assert command[0].peers == ("llama.cpp", "openvino", "vllm")
    expected = {"llama.cpp": "/bin/sh", "openvino": "/bin/sh", "vllm": sys.executable}
    assert command[0].pythons == expected
    assert len(json.loads(out.read_text())["models"]) == 2
    assert capsys.readouterr().out.count("| target |") == 2
    assert cli.main(["bench", "--peers", "x"]) == 2
    assert cli.main(["bench", "--peer-python", "x=/p"]) == 2
