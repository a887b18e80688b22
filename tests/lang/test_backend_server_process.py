"""A real server process: the default model gives the same text, and the process ends with its owner."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.default_model import default_model_path

import stolon as sl
from stolon.errors import BackendUnavailable, EngineError
from stolon.lang.backends.http import HTTPOptions, Retries
from stolon.lang.backends.stolon_server import RemoteEngine

SERVE_FAKE = Path(__file__).parents[1] / "support" / "serve_fake.py"


@sl.function
def program(s):
    s += sl.user("Name a colour.")
    s += sl.assistant(sl.gen("a", max_tokens=12, temperature=0.8, return_logprob=True))
    s += sl.user("Is it warm?") + sl.assistant(sl.select("c", ["yes", "no"]))
    views = s.fork(2)
    for view in views:
        view += sl.user("Why?") + sl.assistant(sl.gen("why", max_tokens=6, regex="[a-z ]+"))
    s.set_var("why", [view["why"] for view in views])


def test_a_runtime_gives_what_the_embedded_engine_gives():
    path = str(default_model_path())
    with sl.Engine(path) as engine:
        expected = program.run(backend=engine, seed=3)
        with sl.Runtime(model_path=path, kv_tokens=4096, api_key="k") as runtime:
            state = program.run(backend=runtime, seed=3)
            assert state.text() == expected.text()
            assert state["why"] == expected["why"]
            assert state.scores("c").details == expected.scores("c").details
            logprobs = [s.get_meta_info("a")["output_token_logprobs"] for s in (state, expected)]
            assert logprobs[0] == logprobs[1]
            assert runtime.info.kv_slots == 4096
            assert '"text"' in runtime.generate("Hi", {"max_new_tokens": 1, "temperature": 0})
            process = runtime._server.process
            process.stdin.close()  # as when this process is gone
            assert process.wait(20) == 0
            with pytest.raises(BackendUnavailable):
                program.run(
                    backend=RemoteEngine(
                        runtime.url, HTTPOptions(retries=Retries(count=0), api_key="k")
                    )
                )


def test_a_failed_start_says_why(tmp_path):
    with pytest.raises(EngineError, match=r"no\.gguf"):
        sl.Runtime(model_path=str(tmp_path / "no.gguf"))


def test_a_server_that_is_killed_fails_what_runs():
    command = [sys.executable, str(SERVE_FAKE), "stuck", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        url = next(
            line.split(" at ")[1].split("/v1")[0] for line in server.stdout if " at " in line
        )
        with sl.connect(url, retries=0) as remote:
            state = sl.function(_one).run(backend=remote, stream=True)
            pieces = state.text_iter()
            assert next(pieces) == "x"
            assert next(pieces) == "H"
            server.kill()
            with pytest.raises(BackendUnavailable, match="broke off"):
                list(pieces)
            with pytest.raises(BackendUnavailable):
                state["a"]


def _one(s):
    s += "x" + sl.gen("a")
