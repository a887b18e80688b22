"""Commands that are interrupted, or whose output nobody reads, end at once and lose nothing."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent.parent


def test_one_more_interruption_on_the_way_out_has_no_traceback():
    code = (
        "import atexit, os, signal, sys\n"
        "from stolon import cli\n"
        "from stolon.commands import models\n"
        "def interrupt(args): raise KeyboardInterrupt\n"
        "models.run, sys.argv = interrupt, ['stolon', 'models']\n"
        "atexit.register(os.kill, os.getpid(), signal.SIGINT)\n"
        "sys.exit(cli.main())"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "stolon: interrupted\n")


INTERRUPTED = """
import asyncio, sys
sys.path.insert(0, {tests!r})
from support.fake_engine import FakeEngine
gate = lambda before, segment: (print("READY", flush=True), __import__("time").sleep(60))
sl.set_default_backend(FakeEngine({{"slow": gate}}))
@sl.function
def f(s, i=9):
    s += str(i) + sl.gen("slow" if i > 2 else "quick")
    s["slow" if i > 2 else "quick"]
@sl.function
async def g(s, i=9):
    s += str(i) + sl.gen("slow" if i > 2 else "quick")
    await s.aget("slow" if i > 2 else "quick")
items, file = [(i,) for i in range(6)], {file!r}
async def stream():
    async for _ in (await g.arun(stream=True)).text_async_iter():
        pass
async def batch():
    await f.arun_batch(items, num_threads=1, checkpoint=file)
"""
WAYS = {
    "run": "f.run()",
    "async body": "g.run()",
    "stream": "list(f.run(stream=True).text_iter())",
    "arun": "asyncio.run(f.arun())",
    "arun of an async body": "asyncio.run(g.arun())",
    "async stream": "asyncio.run(stream())",
    "batch": "f.run_batch(items, num_threads=1, checkpoint=file)",
    "batch of async bodies": "g.run_batch(items, num_threads=1, checkpoint=file)",
    "async batch": "asyncio.run(batch())",
    "batch as a generator": "list(f.run_batch(items, num_threads=1, checkpoint=file, generator_style=True))",
}


def test_ctrl_c_in_a_script_is_one_line_and_keeps_the_checkpoint(tmp_path):
    started = {}
    for way, call in WAYS.items():
        file = tmp_path / f"{way}.py"
        file.write_text(
            INTERRUPTED.format(tests=str(TESTS), file=str(tmp_path / f"{way}.jsonl"))
            + f"{call}\nprint('not interrupted')\n"
        )
        started[way] = subprocess.Popen(
            [sys.executable, "-m", "stolon.cli", "run", str(file)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
    watchdog = threading.Timer(60, lambda: [process.kill() for process in started.values()])
    watchdog.start()
    ended = {}
    for way, process in started.items():
        assert process.stdout.readline() == "READY\n", way
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: whatever it started, too
        out, err = process.communicate(timeout=20)
        ended[way] = (process.returncode, out, err.replace(str(tmp_path), ""))
        with pytest.raises(ProcessLookupError):
            os.killpg(process.pid, 0)  # nothing is left of it
    watchdog.cancel()
    for way, end in ended.items():
        told = "stolon: interrupted"
        if way in ("batch", "batch of async bodies", "batch as a generator"):
            handed = ", 3 of them handed over" if "generator" in way else ""
            told += (
                f"; 3 of 6 items are finished{handed}, see .results; "
                f"the same call goes on from /{way}.jsonl"
            )
        assert end == (130, "", told + "\n"), way
        if "batch" in way:
            lines = (tmp_path / f"{way}.jsonl").read_text().splitlines()
            assert [json.loads(line)["item"] for line in lines[1:]] == [0, 1, 2], way


def test_broken_pipe_is_silent():
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "stolon.cli", "models"],
            stdout=writer,
            stderr=subprocess.PIPE,
            check=False,
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")
