"""The check as a whole: its worker process, the ratchet, the exit code, the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stolon import cli
from stolon.constrained.check import Case, Reply, Request, Setup, check
from stolon.constrained.check.guard import Guard
from stolon.constrained.check.ratchet import compare, load, save
from stolon.errors import InternalError, InvalidRequest

HERE = Path(__file__).parent
SAMPLE, RATCHET = HERE / "conformance", HERE / "ratchet.json"
WORKER = [sys.executable, "-m", "stolon.cli", "check", "jsts", ".", "--worker"]
CASE = Case(name="c", kind="json_schema", schema={}, instances=[])


def script(body: str) -> list[str]:
    """A stand-in for the worker that does something to each case."""
    return [
        sys.executable,
        "-c",
        "import os, sys, time\n"
        "sys.stdin.readline(); print('\"ready\"', flush=True)\n"
        f"for line in sys.stdin:\n    {body}\n",
    ]


def request(folder: Path, **fields: Any) -> Request:
    return Request(suite="jsts", folder=folder, worker=WORKER, **fields)


def test_a_case_that_hangs_or_crashes_is_counted_and_the_next_one_runs() -> None:
    body = "time.sleep(60) if 'hang' in line else os._exit(3) if 'crash' in line else print('{}', flush=True)"
    named = {n: Case(name=n, kind="regex", instances=[]) for n in ("hang", "crash", "fine")}
    with Guard(script(body), Setup(), seconds=0.5) as guard:
        assert guard.run(named["fine"]) == Reply()
        assert guard.run(named["hang"]).fatal == "timeout"
        assert guard.run(named["fine"]) == Reply()
        assert guard.run(named["crash"]).fatal == "crash"
        assert guard.run(named["fine"]) == Reply()


def test_the_last_words_of_a_worker_are_told() -> None:
    with Guard(script("raise ValueError('this one')"), Setup(), seconds=5) as guard:
        assert guard.run(CASE).refusal == "ValueError: this one"
    with (
        pytest.raises(InternalError, match="did not start: no such thing"),
        Guard([sys.executable, "-c", "exit('no such thing')"], Setup(), seconds=5),
    ):
        pass


def test_our_sample_is_no_worse_than_its_ratchet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    assert check(request(SAMPLE, ratchet=RATCHET, json_out=out)) == 0
    shown = capsys.readouterr().out
    assert "worse" not in shown
    assert "exact" in shown
    assert json.loads(out.read_text())["cases"] == len(load(RATCHET))


def test_a_worse_case_and_an_unsound_one_give_exit_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lie = [{"description": "lie", "data": 1, "valid": False}]
    groups = [{"description": "g", "schema": {"type": 5}, "tests": []}]
    (tmp_path / "suite").mkdir()
    (tmp_path / "suite" / "s.json").write_text(json.dumps(groups))
    ratchet = tmp_path / "r.json"
    save(ratchet, {"s: g": "exact", "s: gone": "exact"})
    assert check(request(tmp_path / "suite", ratchet=ratchet)) == 1
    assert "worse: s: g: was exact, is refused" in capsys.readouterr().out
    assert check(request(tmp_path / "suite", ratchet=ratchet, update=True)) == 0
    assert load(ratchet) == {"s: g": "refused"}
    assert check(request(tmp_path / "suite", ratchet=ratchet)) == 0
    groups.append({"description": "h", "schema": {"type": "integer"}, "tests": lie})
    (tmp_path / "suite" / "s.json").write_text(json.dumps(groups))
    assert check(request(tmp_path / "suite", ratchet=ratchet)) == 1
    assert check(request(tmp_path / "suite", match="s: g")) == 0


def test_an_interruption_reports_what_was_done(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    runs: list[Case] = []

    def run(self: Guard, case: Case) -> Reply:
        runs.append(case)
        if len(runs) == 3:
            raise KeyboardInterrupt
        return Reply(verdicts=["pass"])

    monkeypatch.setattr(Guard, "run", run)
    ratchet, out = tmp_path / "r.json", tmp_path / "out.json"
    with pytest.raises(KeyboardInterrupt):
        check(request(SAMPLE, ratchet=ratchet, update=True, json_out=out))
    shown = capsys.readouterr()
    assert ": 2 of " in shown.out
    assert "interrupted" in shown.err
    assert json.loads(out.read_text())["cases"] == 2
    assert not ratchet.exists()


def test_changes_are_worse_or_better() -> None:
    before: Any = {"a": "exact", "b": "refused", "c": "unsound", "d": "incomplete", "e": "untested"}
    now: Any = {"a": "timeout", "b": "incomplete", "c": "refused", "d": "unsound", "e": "exact"}
    assert {c.name: c.worse for c in compare(before, {**now, "new": "crash"})} == {
        "a": True,
        "b": False,
        "c": False,
        "d": True,
        "e": False,
    }


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"folder": Path("none")}, "no folder"),
        ({"ratchet": Path("none.json")}, "ratchet file can't be read"),
        ({"update": True}, "needs --ratchet"),
        ({"json_out": Path("none/out.json")}, "no folder"),
        ({"match": "no such case"}, "no case"),
        ({"draft": "draft3"}, "known are"),
        ({"remotes": Path("none")}, "no folder"),
    ],
)
def test_bad_arguments_are_told_before_anything_runs(fields: dict[str, Any], word: str) -> None:
    with pytest.raises(InvalidRequest, match=word):
        check(request(**{"folder": SAMPLE, **fields}))


def test_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["check", "jsts", str(SAMPLE), "--match", "tuples", "--masks", "--walks", "2"]
    assert cli.main([*arguments, "--limit-ms", "20000"]) == 0
    shown = capsys.readouterr().out
    assert "2 of 2 cases" in shown
    assert "mask us" in shown
    assert cli.main(["check", "jsts", "none"]) == 2
    assert cli.main(["check", "jsts", str(SAMPLE), "--tokenizer", "./none.gguf"]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 2
    assert all(line.startswith("stolon: error: ") for line in errors)


def test_the_module_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "stolon.constrained.check", "regex", "none"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr == "stolon: error: there is no folder none\n"
    assert done.stdout == "tokenizer bytes: 257 tokens\n"
