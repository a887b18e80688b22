"""The examples, run as a user runs them, on the default model and at small sizes."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

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


def test_agent():
    out, _ = run("agent.py", "What is 12 * 7?")
    tools = re.findall(r"^tool +(\w+) (\{.*?\}) -> (.*)$", out, re.MULTILINE)
    assert tools
    for tool, arguments, result in tools:
        assert tool in ("calculate", "look_up")
        assert list(json.loads(arguments)) == ["expression" if tool == "calculate" else "topic"]
        assert result
    assert len(re.findall(r"^opinion ", out, re.MULTILINE)) == 2
    assert re.search(r"^answer +\S", out, re.MULTILINE)
    # What was said before the fork was computed once: the branches found it.
    cached = [int(found) for found in re.findall(r"gen opinion  cached (\d+)", out)]
    assert len(cached) == 2
    assert min(cached) > 0


@pytest.mark.parametrize("expression", ["1 / 0", "2 **** 3", "1.1.1"])
def test_the_agent_computes_only_arithmetic(expression):
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import agent;"
        "print(agent.calculate(agent.Calculation(expression=sys.argv[2])))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(EXAMPLES), expression],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("error: ")


def check_people(path: Path) -> list[str]:
    for record in records(path):
        person = record["person"]
        assert sorted(person) == ["age", "city", "name", "works"]
        assert person["age"] is None or 0 <= person["age"] <= 120
        assert len(person["name"]) <= 40
        assert person["works"] in ("yes", "no", "unknown")
    return [record["document"] for record in records(path)]


def test_extract_skips_and_resumes(tmp_path):
    notes = tmp_path / "notes"
    notes.mkdir()
    for path in NOTES.glob("*.txt"):
        (notes / path.name).write_bytes(path.read_bytes())
    (notes / "08-long.txt").write_text("word " * 1000)
    out = tmp_path / "people.jsonl"

    stdout, stderr = run("extract.py", notes, out, "--limit", "3")
    assert check_people(out) == ["01-maria.txt", "02-henrik.txt"]
    assert "2 written, 1 skipped, 0 done before" in stdout
    assert "03-empty.txt: the file is empty" in stderr

    # As after a crash in the middle of a line.
    with out.open("a", encoding="utf-8") as file:
        file.write('{"document": "04-ai')
    first = out.read_text(encoding="utf-8").splitlines()[:2]
    stdout, stderr = run("extract.py", notes, out)
    assert out.read_text(encoding="utf-8").splitlines()[:2] == first
    assert sorted(check_people(out)) == [
        "01-maria.txt",
        "02-henrik.txt",
        "04-aiko.txt",
        "06-amina.txt",
        "07-peter.txt",
    ]
    assert "3 written, 3 skipped, 2 done before" in stdout
    for name in ("03-empty.txt", "05-latin1.txt", "08-long.txt"):
        assert f"skipped {name}: " in stderr


def test_extract_after_ctrl_c(tmp_path):
    notes = tmp_path / "notes"
    notes.mkdir()
    text = (NOTES / "01-maria.txt").read_text(encoding="utf-8")
    for i in range(200):
        (notes / f"{i:03}.txt").write_text(f"Entry {i}. {text}", encoding="utf-8")
    out = tmp_path / "people.jsonl"
    with start("extract.py", notes, out, "--at-once", "2") as process:
        deadline = time.monotonic() + 120
        while not (out.exists() and out.stat().st_size) and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    done = check_people(out)
    assert done == [f"{i:03}.txt" for i in range(len(done))]
    assert 0 < len(done) < 200
    stdout, _ = run("extract.py", notes, out, "--limit", "2")
    assert f"2 written, 0 skipped, {len(done)} done before" in stdout
    assert len(set(check_people(out))) == len(done) + 2


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
    """The one line on stderr of an example that must end with 2 before it loads a model."""
    with start(name, *args) as process:
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (2, ""), err
    assert err.count("\n") == 1, err
    assert err.startswith(f"{name.removesuffix('.py')}: error: ")
    return err


NO_MODEL = ("--model", "no-such-model")


@pytest.mark.parametrize("tail", [b"", b'{"docu', b'{"document":"b\xc3'])
def test_extract_resumes_from_any_cut(tmp_path, tail):
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "a.txt").write_text("Aiko, 28.")
    out = tmp_path / "o.jsonl"
    whole = '{"document":"a.txt","note":"é\u2028"}\n'.encode()
    out.write_bytes(whole + tail)
    # All is done, so that no model is loaded.
    stdout, _ = run("extract.py", notes, out, *NO_MODEL)
    assert stdout == "0 written, 0 skipped, 1 done before\n"
    assert out.read_bytes() == whole


@pytest.mark.parametrize(
    ("content", "line"),
    [(b'{"a": 1}\n', 1), (b'{"document": "a"}\n[1]\n', 2), (b"\xff\n", 1), (b"my diary", 1)],
)
def test_extract_leaves_a_foreign_file_alone(tmp_path, content, line):
    out = tmp_path / "o.jsonl"
    out.write_bytes(content)
    assert f"[at line {line}]" in refused("extract.py", NOTES, out, *NO_MODEL)
    assert out.read_bytes() == content


def test_mistakes_are_one_line(tmp_path):
    missing = tmp_path / "none"
    out = tmp_path / "o.jsonl"
    assert "is not a folder" in refused("extract.py", missing, out, *NO_MODEL)
    assert "is not a folder" in refused("extract.py", NOTES, missing / "o", *NO_MODEL)
    assert "is not a folder" in refused("rollouts.py", missing / "o", *NO_MODEL)
    assert "holds no .txt" in refused("extract.py", tmp_path, out, *NO_MODEL)
    assert not out.exists()
    assert "no-such-model" in refused("agent.py", *NO_MODEL)


@pytest.mark.parametrize(
    "option",
    [("--samples", 0), ("--samples", 129), ("--groups", 0), ("--temperature", "nan"), NO_MODEL],
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


def test_ctrl_c_while_the_model_is_loaded(tmp_path):
    out = tmp_path / "o.jsonl"
    with start("extract.py", NOTES, out) as process:
        deadline = time.monotonic() + 60
        while not out.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in err


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
