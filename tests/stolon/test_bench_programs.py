"""The eight programs: the same texts in the language and as calls, the driver of calls, the reports."""

import copy
import json
import re
import time
import zlib

import pytest
from support.fake_engine import FakeEngine, tiny_chat_template
from support.gguf_files import random_weights, tiny_config, write_gguf_model

from stolon.benchmarks import ProgramsPlan, judge_programs, measure_programs, programs_table
from stolon.benchmarks import peers as peers_module
from stolon.benchmarks.machine import machine
from stolon.benchmarks.programs import driver
from stolon.benchmarks.programs.constraints import CONSTRAINTS, asked, count_valid, valid
from stolon.benchmarks.programs.in_calls import DIMENSIONS, SAMPLES, SCRIPTS, vote
from stolon.benchmarks.programs.in_stolon import PROGRAMS
from stolon.benchmarks.programs.inputs import ITEMS, inputs
from stolon.benchmarks.programs.report import ratios
from stolon.errors import InternalError
from stolon.srt.protocol import Select

OUTLINE = "1. Begin early\n2. Borrow tools\n3. Ask around\n4. Keep at it"
SHEET = {
    "name": "Ada",
    "age": 30,
    "trade": "baker",
    "home": "Leeds",
    "alive": True,
    "mood": "calm",
    "belongings": ["a lamp", "a map"],
    "enemy": "Hugo",
}
GOOD = {
    "letter": " A",
    "grade": "1",
    "number": "42",
    "outline": OUTLINE,
    "action": " search[oslo]",
    "decision": '{"grade": "B", "publish": true}',
    "sheet": json.dumps(SHEET),
}
LIKE = {name: asked(name) for name in CONSTRAINTS}


def free_text(prompt):
    return f" {zlib.crc32(prompt.encode()) % 1000}"


class Recorder(FakeEngine):
    """Answers what the prompt determines, and notes (prompt, most tokens, temperature) of each."""

    def __init__(self):
        super().__init__(chat_template=tiny_chat_template())
        self.calls = []

    def _text(self, segment, before, sample):
        if isinstance(segment, Select):
            self.calls.append((before, None, None))
            return segment.choices[0]
        sampling = segment.sampling
        self.calls.append((before, sampling.max_tokens, sampling.temperature))
        assert sampling.ignore_eos == (segment.grammar is None)
        return free_text(before) if segment.grammar is None else GOOD[segment.name]


class Scripted:
    """A caller that answers alike, one call a step, the last one first."""

    concurrency = 0
    primed = False
    settings = {}  # noqa: RUF012

    def __init__(self):
        self.calls = []
        self.waiting = []
        self.most_waiting = 0
        self.template = tiny_chat_template()

    def submit(self, call):
        self.waiting.append((object(), call))
        self.most_waiting = max(self.most_waiting, len(self.waiting))
        return self.waiting[-1][0]

    def step(self):
        key, call = self.waiting.pop()
        prompt = call.prompt
        if not isinstance(prompt, str):
            prompt = self.template.render(prompt, add_generation_prompt=True)
        like = next((name for name, form in LIKE.items() if form == call.like), None)
        tokens = None if like in ("letter", "grade") else call.max_tokens
        temperature = None if tokens is None else call.temperature
        self.calls += [(prompt, tokens, temperature)] * call.n
        text = free_text(prompt) if like is None else GOOD[like]
        return [(key, [text] * call.n, call.n * call.max_tokens)]


@pytest.mark.parametrize("program", ITEMS)
def test_the_same_work_in_the_language_and_as_calls(program):
    items = inputs(program, 1, 2)
    engine, caller = Recorder(), Scripted()
    try:
        states = PROGRAMS[program].run_batch(items, backend=engine, seed=1)
    finally:
        engine.close()
    answer = driver.run(caller, SCRIPTS[program], items, LIKE, 60.0)
    assert [state.ret_value for state in states] == answer["results"]
    assert sorted(engine.calls, key=repr) == sorted(caller.calls, key=repr)
    assert answer["texts"] == len(engine.calls) >= 2
    counts = [count_valid(program, result) for result in answer["results"]]
    assert all(good == all_ for good, all_ in counts)


def test_programs_ask_at_the_same_time():
    caller = Scripted()
    driver.run(caller, SCRIPTS["judge"], inputs("judge", 1, 3), LIKE, 60.0)
    assert caller.most_waiting == 3 * len(DIMENSIONS)
    caller = Scripted()
    caller.concurrency = 1
    driver.run(caller, SCRIPTS["judge"], inputs("judge", 1, 3), LIKE, 60.0)
    assert caller.most_waiting == len(DIMENSIONS)


def test_a_primed_batch_begins_alone():
    caller = Scripted()
    caller.primed = True
    items = inputs("few_shot", 1, 3)
    answer = driver.run(caller, SCRIPTS["few_shot"], items, LIKE, 60.0)
    assert [tokens for _, tokens, _ in caller.calls] == [1, None, None, None]
    assert answer["texts"] == 3
    assert caller.most_waiting == 3


def test_failures_of_calls():
    class Broken(Scripted):
        def step(self):
            raise ValueError("out of paint")

    class Slow(Scripted):
        def step(self):
            time.sleep(0.02)
            return super().step()

    class Short(Scripted):
        def step(self):
            return [(key, texts, tokens - 1) for key, texts, tokens in super().step()]

    items = inputs("chat", 1, 2)
    for caller, limit, error, words in (
        (Broken(), 60.0, ValueError, "out of paint"),
        (Slow(), 0.01, TimeoutError, "too long"),
        (Short(), 60.0, RuntimeError, "47 tokens instead of 1 × 48"),
    ):
        with pytest.raises(error, match=words):
            driver.run(caller, SCRIPTS["chat"], items, LIKE, limit)
        assert not caller.waiting or isinstance(caller, Broken)


@pytest.mark.parametrize("program", ITEMS)
def test_inputs_are_the_same_everywhere_and_new_in_each_batch(program):
    batch = inputs(program, 3)
    assert batch == inputs(program, 3)
    assert len(batch) == ITEMS[program] >= 16
    assert len({json.dumps(item) for item in batch}) > ITEMS[program] // 2
    head = {next(iter(item.values())) for item in batch}
    assert len(head) == 1
    assert head.pop().startswith("Batch 3.")
    assert inputs(program, 4)[0] != batch[0]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("letter", "A"),
        ("grade", "6"),
        ("number", ""),
        ("outline", OUTLINE + "\n5. More"),
        ("action", "search[oslo]"),
        ("decision", '{"grade": "E", "publish": true}'),
        ("decision", '{"grade": "A", "publish": "yes"}'),
        ("sheet", "{"),
        ("sheet", json.dumps({**SHEET, "more": 1})),
        ("sheet", json.dumps({**SHEET, "age": 121})),
    ],
)
def test_what_is_not_valid(name, text):
    assert valid(name, GOOD[name])
    assert not valid(name, text)


def test_forms_of_constraints():
    assert set(LIKE) == set(GOOD)
    for form in LIKE.values():
        assert set(form) in ({"choices"}, {"regex", "gbnf"}, {"schema"})
        if "regex" in form:
            assert re.compile(form["regex"])
            assert form["gbnf"].startswith("root ::= ")
    json.dumps(LIKE)


def test_vote():
    texts = ["so it is 12.", "The answer is 7.", "nothing", "$12, then"]
    assert vote(texts) == "12"
    assert vote(["none"] * SAMPLES) == ""


def row(seconds, **more):
    return {
        "seconds": seconds,
        "alone_seconds": seconds / 4,
        "texts": 64,
        "tokens": 1000,
        "valid": 63,
        "constrained": 64,
        **more,
    }


def results():
    ours = {"version": "1", "settings": {"threads": 2}}
    ours["programs"] = {
        "judge": row(1.0, cached=300, computed=100),
        "chat": row(2.0, cached=0, computed=10, valid=0, constrained=0),
    }
    peer = {"version": "2", "settings": {}, "programs": {"judge": row(9.0), "chat": row(3.0)}}
    peer["programs"]["chat"] |= {"valid": 0, "constrained": 0}
    peer["programs"]["judge"]["settings"] = {"primed": True}
    other = copy.deepcopy(peer)
    other["programs"] = {"judge": row(4.0), "chat": {"error": "too long"}}
    return {
        "machine": machine(),
        "model": "m.gguf",
        "repeats": 3,
        "items": {"judge": 16, "chat": 8},
        "engines": {"stolon": ours, "openvino": peer, "vllm": other},
        "missing": {"llama.cpp": "not there"},
    }


def test_ratios_and_verdicts():
    found = results()
    assert ratios(found) == {"judge": 4.0, "chat": 1.5}
    verdicts = {verdict.target.name: verdict for verdict in judge_programs(found)}
    assert verdicts["programs_mean"].found == pytest.approx(6**0.5)
    assert verdicts["programs_mean"].word == "FAIL"
    assert verdicts["programs_least"].found == 1.5
    assert verdicts["programs_least"].word == "PASS"
    for name in ("openvino", "vllm"):
        del found["engines"][name]
    assert ratios(found) == {}
    assert {verdict.word for verdict in judge_programs(found)} == {"not measured"}
    assert "geometric mean" not in programs_table(found)


def test_table():
    text = programs_table(results())
    assert "| judge | 1.00 | 9.00 | 4.00 | 4.00× |" in text
    assert "| chat | 2.00 | 3.00 | – | 1.50× |" in text
    assert "| geometric mean | | | | 2.45× |" in text
    assert "| judge | 0.25 | 2.25 | 1.00 | 4.00× |" in text
    assert "| judge | 16 | 64 | 1000, 63 of 64 | 1000, 63 of 64 | 1000, 63 of 64 | 75% |" in text
    assert "| chat | 8 | 64 | 1000 | 1000 | – | 0% |" in text
    assert "openvino: 2; primed True (judge)" in text
    assert "vllm, chat: not measured: too long" in text
    assert "llama.cpp: not measured: not there" in text


FAKE_OURS = """
class Worker:
    def load(self, path, threads, **more):
        return {"version": "0", "settings": {}}

    def tokenize(self, text):
        return {"ids": list(text.encode())}

    def run_program(self, program, items, seed):
        results = [{"letter": " A"} for _ in items]
        return {"seconds": 0.001 * len(items), "results": results, "texts": len(items), "tokens": 9,
                "cached": 1, "computed": 1}
"""
FAKE_PEER = """
import time

VARIANTS = ("slow", "fast", "faster")

class Worker:
    def load(self, path, threads, **more):
        return {"version": "0", "settings": {}}

    def prefill(self, ids):
        return {}

    def decode(self, prompts, new_tokens):
        return {}

class Caller:
    concurrency = 0
    primed = False

    def __init__(self, worker, variant):
        self.waiting, self.pause = [], {"slow": 0.02, "fast": 0.001, "faster": 0.0}[variant]
        self.settings = {"variant": variant}

    def submit(self, call):
        self.waiting.append((len(self.waiting), call))
        return self.waiting[-1][0]

    def step(self):
        time.sleep(self.pause)
        if BROKEN:
            raise RuntimeError("out of paint")
        done, self.waiting = self.waiting, []
        return [(key, [" E"], 1) for key, _ in done]
"""


@pytest.fixture
def fakes(tmp_path, monkeypatch):
    """Workers without engines; returns the plan, of one program."""
    home = tmp_path / "workers"
    (home / "programs").mkdir(parents=True)
    real = peers_module._MAIN.parent
    for name in ("worker_main", "programs/driver", "programs/in_calls"):
        (home / f"{name}.py").write_text((real / f"{name}.py").read_text(encoding="utf-8"))
    (home / "stolon_worker.py").write_text(FAKE_OURS)
    for name, broken in (("openvino", False), ("llama_cpp", True)):
        source = f"BROKEN = {broken}\n{FAKE_PEER}"
        (home / f"{name}_worker.py").write_text(source)
        (home / f"{name}_calls.py").write_text(source)
    monkeypatch.setattr(peers_module, "_MAIN", home / "worker_main.py")
    return ProgramsPlan(
        model=tmp_path / "m.gguf",
        peers=("openvino", "llama.cpp"),
        programs=("few_shot",),
        repeats=2,
    )


def test_a_run_on_fake_engines(fakes):
    found = measure_programs(fakes, lambda text: None)
    json.dumps(found)
    rows = {name: engine["programs"]["few_shot"] for name, engine in found["engines"].items()}
    assert rows["stolon"]["seconds"] == pytest.approx(0.001 * 32)
    assert (rows["stolon"]["valid"], rows["stolon"]["constrained"]) == (32, 32)
    peer = rows["openvino"]
    assert (peer["texts"], peer["valid"], peer["constrained"]) == (32, 0, 32)
    assert peer["settings"]["variant"] in ("fast", "faster")
    assert 0 < peer["alone_seconds"] < peer["seconds"] * 32
    assert "out of paint" in rows["llama.cpp"]["error"]
    assert set(ratios(found)) == {"few_shot"}
    assert "llama.cpp, few_shot: not measured" in programs_table(found)


def test_this_engine_has_to_work(fakes, monkeypatch):
    file = peers_module._MAIN.parent / "stolon_worker.py"
    file.write_text(FAKE_OURS.replace("run_program", "run_nothing"))
    with pytest.raises(InternalError, match="run_program"):
        measure_programs(fakes, lambda text: None)


def test_the_worker_runs_a_program_on_its_engine():
    from stolon.benchmarks.stolon_worker import Worker

    worker = Worker()
    worker.engine = Recorder()
    try:
        answer = worker.run_program("chat", inputs("chat", 1, 3), seed=1)
    finally:
        worker.close()
    assert answer["texts"] == 6
    assert answer["seconds"] > 0
    assert len(answer["results"]) == 3
    assert answer["tokens"] > 0
    assert answer["computed"] > 0


def test_quick_is_smaller(tmp_path):
    plan = ProgramsPlan.quick(model=tmp_path)
    assert (plan.repeats, plan.divisor > 1, plan.programs) == (1, True, tuple(ITEMS))


def test_the_command(monkeypatch, tmp_path, capsys):
    from stolon import benchmarks, cli
    from stolon.srt import loaders

    plans = []

    def fake_measure(plan, say):
        plans.append(plan)
        return results()

    config = tiny_config("llama")
    model = write_gguf_model(tmp_path / "tiny.gguf", config, random_weights(config))
    monkeypatch.setattr(loaders, "resolve", lambda _: model)
    monkeypatch.setattr(benchmarks, "measure_programs", fake_measure)
    out = tmp_path / "out.json"
    arguments = ["bench", "programs", "--peers", "openvino", "--json", str(out)]
    assert cli.main(arguments) == 0
    assert isinstance(plans[0], ProgramsPlan)
    assert (
        "| programs_mean | at least 3× of the best peer | 2.45× | FAIL |" in capsys.readouterr().out
    )
    assert json.loads(out.read_text())["models"][0]["items"] == {"judge": 16, "chat": 8}
    assert cli.main([*arguments, "--check"]) == 1
    assert cli.main([*arguments, "--plot", str(tmp_path / "x.png")]) == 2
