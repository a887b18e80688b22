"""The examples, run as a user runs them, on the default model and at small sizes."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import runpy
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

import stolon as sl
from stolon.srt.loaders import list_models

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples"
NOTES = EXAMPLES / "data" / "notes"
# Threads that spin while they wait make a busy machine many times slower.
ENVIRONMENT = {**os.environ, "OMP_WAIT_POLICY": "passive"}

pytestmark = pytest.mark.skipif(
    not any(entry.cached for entry in list_models() if entry.name == "smollm2-135m"),
    reason="the default model is not in the cache: `stolon pull smollm2-135m`",
)


def start(name: str, *args: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(EXAMPLES / name), *map(str, args)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )


def run(name: str, *args: object) -> tuple[str, str]:
    """stdout and stderr of an example that must succeed."""
    with start(name, *args) as process:
        out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    assert "Traceback" not in err
    return out, err


def records(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


# (file, arguments, a line of the output). Those that are not here have a test of their own.
LINES = [
    (
        "classify.py",
        ["Best pancakes in town!"],
        r"^good +by +\d+\.\d nats   Best pancakes in town!$",
    ),
    ("chat.py", ["Name a fruit."], r"^> Name a fruit\.\n\S.*\n\n> And one"),
    ("tree_of_thought.py", ["--width", "2", "--keep", "1"], r"^plan 1\n  - \S.*\n  - \S"),
    ("skeleton_of_thought.py", ["rain"], r"(## \S.*\n[^#]*){3}article +4 calls, 4 branches"),
    ("judges.py", [], r"^originality  (poor|fair|good|excellent) +\S.*\n.*\ntogether +\S"),
    ("self_consistency.py", ["--samples", "3"], r"^answer -?\d+, with [123] of 3 votes$"),
    ("character.py", [], r"^[A-Z][a-z]+ of the (forest|sea|hills), (brave|shy|grim|merry)$"),
    ("many_agents.py", ["--agents", "4", "--tries", "3"], r"^4 agents, \d+ calls, \d+\.\d s$"),
    ("remote.py", [], r"^the same text: yes$"),
    ("plan.py", [], r"^\{\"desk\": \d+, \"urgent\": (true|false)\}   cached 3\d\d, computed \d\d:"),
]
OTHERS = {"agent", "client", "extract", "mcp_tools", "rollouts", "timeline"}


@pytest.fixture(scope="module")
def engine():
    """The default backend of the examples that name none: one model for all of them."""
    with sl.Engine(threads=min(2, os.cpu_count() or 1)) as engine:
        sl.set_default_backend(engine)
        yield engine
        sl.set_default_backend(None)


@pytest.mark.parametrize(("name", "args", "line"), LINES, ids=[name for name, _, _ in LINES])
def test_runs(name, args, line, engine, monkeypatch, capsys):
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.setattr(sys, "argv", [name, *args])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    out = capsys.readouterr().out
    assert re.search(line, out, re.MULTILINE), out
    engine.check_integrity()


def test_every_example_is_tested():
    tested = {name.removesuffix(".py") for name, _, _ in LINES} | OTHERS
    assert tested == {path.stem for path in EXAMPLES.glob("[!_]*.py")}


def test_timeline_is_for_perfetto(tmp_path):
    out, _ = run("timeline.py", tmp_path / "run.json")
    events = json.loads((tmp_path / "run.json").read_text())["traceEvents"]
    assert len({event["tid"] for event in events if event["ph"] == "X"}) >= 4
    assert re.search(r"^slowest: \w+ of timeline\.py:\d+, \d+\.\d\d s$", out, re.MULTILINE)


def test_agent():
    out, _ = run("agent.py", "What is 12 * 7?")
    tools = re.findall(r"^tool +(\w+) (\{.*?\}) -> (.*)$", out, re.MULTILINE)
    assert tools
    for tool, arguments, result in tools:
        names = ["left", "operator", "right"] if tool == "calculate" else ["topic"]
        assert list(json.loads(arguments)) == names
        assert result
    assert re.search(r"^answer  \S", out, re.MULTILINE)
    assert re.search(r"^agent  2 calls, 1 branch", out, re.MULTILINE)


def test_mcp_tools():
    out, _ = run("mcp_tools.py")
    if importlib.util.find_spec("mcp") is None:
        assert "skipped: the package mcp is not there" in out
        return
    assert out.startswith("tools   count_words, shout\n")
    assert re.search(r"^called  (count_words|shout) \{\"text\": ", out, re.MULTILINE)


def check_people(path: Path) -> list[str]:
    for record in records(path):
        person = record["person"]
        assert sorted(person) == ["age", "city", "name", "works"]
        assert person["age"] is None or 0 <= person["age"] <= 120
        assert len(person["name"]) <= 40
        assert person["works"] in ("yes", "no", "unknown")
    return [record["document"] for record in records(path)]


def test_extract_skips_what_can_not_be_used(tmp_path):
    notes = tmp_path / "notes"
    notes.mkdir()
    for path in NOTES.glob("*.txt"):
        (notes / path.name).write_bytes(path.read_bytes())
    (notes / "08-long.txt").write_text("word " * 1000)
    out = tmp_path / "people.jsonl"
    stdout, stderr = run("extract.py", notes, out)
    assert check_people(out) == [
        "01-maria.txt",
        "02-henrik.txt",
        "04-aiko.txt",
        "06-amina.txt",
        "07-peter.txt",
    ]
    assert "5 written, 0 of them done before, 3 skipped" in stdout
    for name in ("03-empty.txt", "05-latin1.txt", "08-long.txt"):
        assert f"skipped {name}: " in stderr


def test_extract_goes_on_after_ctrl_c(tmp_path):
    notes = tmp_path / "notes"
    notes.mkdir()
    text = (NOTES / "01-maria.txt").read_text(encoding="utf-8")
    for i in range(60):
        (notes / f"{i:03}.txt").write_text(f"Entry {i}. {text}", encoding="utf-8")
    out, checkpoint = tmp_path / "people.jsonl", tmp_path / "people.jsonl.checkpoint"
    with start("extract.py", notes, out, "--at-once", "2") as process:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            if checkpoint.exists() and checkpoint.read_bytes().count(b"\n") > 2:
                break
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert not out.exists()
    stdout, _ = run("extract.py", notes, out)
    found = re.search(r"60 written, (\d+) of them done before, 0 skipped", stdout)
    assert found, stdout
    assert 0 < int(found[1]) < 60
    assert check_people(out) == [f"{i:03}.txt" for i in range(60)]


def test_rollouts_are_reproducible(tmp_path):
    options = ("--groups", "2", "--samples", "4", "--max-tokens", "8")
    out, _ = run("rollouts.py", tmp_path / "a.jsonl", *options)
    run("rollouts.py", tmp_path / "b.jsonl", *options)
    lines = records(tmp_path / "a.jsonl")
    assert lines == records(tmp_path / "b.jsonl")
    assert [line["group"] for line in lines] == [0] * 4 + [1] * 4
    for line in lines:
        assert len(line["logprobs"]) == len(line["token_ids"]) <= 8
        assert all(value <= 0 for value in line["logprobs"])
        assert 0 <= line["reward"] <= 1
    assert len({tuple(line["token_ids"]) for line in lines}) > 2
    for group in (0, 1):
        advantages = [line["advantage"] for line in lines if line["group"] == group]
        assert abs(sum(advantages)) < 1e-6
    assert re.search(r"mean reward \d\.\d{3}, best of 4: \d\.\d{3}", out)


def refused(name: str, *args: object) -> str:
    """The one line on stderr of an example that must end with 2."""
    with start(name, *args) as process:
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (2, ""), err
    assert err.count("\n") == 1, err
    assert err.startswith(f"{name.removesuffix('.py')}: error: ")
    return err


NO_MODEL = ("--model", "no-such-model")


def test_mistakes_are_one_line(tmp_path):
    missing = tmp_path / "none"
    out = tmp_path / "o.jsonl"
    assert "is not a folder" in refused("extract.py", missing, out, *NO_MODEL)
    assert "is not a folder" in refused("extract.py", NOTES, missing / "o", *NO_MODEL)
    assert "is not a folder" in refused("rollouts.py", missing / "o", *NO_MODEL)
    assert "no-such-model" in refused("agent.py", *NO_MODEL)
    assert not out.exists()


@pytest.mark.parametrize(
    "option", [("--samples", 129), ("--groups", 0), ("--temperature", "nan"), NO_MODEL]
)
def test_rollouts_keep_an_older_output(tmp_path, option):
    out = tmp_path / "o.jsonl"
    out.write_text("precious\n")
    assert str(option[1]) in refused("rollouts.py", out, *option)
    assert out.read_text() == "precious\n"


def test_client_without_a_server():
    pytest.importorskip("openai")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, but nobody listens
        port = taken.getsockname()[1]
        line = refused("client.py", "--base-url", f"http://127.0.0.1:{port}/v1")
    assert "--spawn" in line


def test_client_with_its_own_server():
    pytest.importorskip("openai")
    out, _ = run("client.py", "--spawn")
    assert "model   smollm2-135m" in out
    usage = re.search(r"^usage   (\d+) \+ (\d+) tokens$", out, re.MULTILINE)
    assert usage
    assert int(usage[1]) > 0
    assert 0 < int(usage[2]) <= 32
    city = re.search(r"^schema  (\{.*\})$", out, re.MULTILINE)
    assert city
    assert "population_millions" in city[1]
