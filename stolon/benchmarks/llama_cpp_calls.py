"""Separate calls on llama-cpp-python (see programs/driver.py): of its OpenAI server, and in process.

Either way one call is computed at a time, and what it shares with the one before is not computed
again; so programs run one after the other, branches first to their ends, which keeps such calls
together. Its cache of states (`--cache`) made nine of eleven trials slower and is off. Chat prompts go
through the template in the model file, constraints through its grammars (GBNF). That a free text
does not end early is asked for by a bias of -100 on the tokens that end it.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import subprocess
import sys
import time
from typing import Any

import llama_cpp
from llama_cpp.llama_grammar import json_schema_to_gbnf

VARIANTS = ("server", "in process")
CONTEXT = 4096
STARTING = 60.0
"""Seconds that the server may take until it answers."""


class Caller:
    concurrency = 1
    primed = False

    def __init__(self, worker: Any, variant: str) -> None:
        self._ends = {str(token): -100.0 for token in worker.end_tokens()}
        self._waiting: list[tuple[int, Any]] = []
        self._number = 0
        kind = Server if variant == "server" else InProcess
        self._model: Server | InProcess = kind(worker.path, worker.threads)
        self.settings = {"calls": variant}

    def submit(self, call: Any) -> int:
        self._number += 1
        self._waiting.append((self._number, call))
        return self._number

    def step(self) -> list[tuple[int, list[str], int]]:
        # The last one asked for follows most likely from what was just computed.
        key, call = self._waiting.pop()
        found = [self._one(call) for _ in range(call.n)]
        return [(key, [text for text, _ in found], sum(tokens for _, tokens in found))]

    def _one(self, call: Any) -> tuple[str, int]:
        body: dict[str, Any] = {"max_tokens": call.max_tokens, "temperature": call.temperature}
        if call.like is None:
            body["logit_bias"] = self._ends
        else:
            body["grammar"] = _grammar(call.like)
        if isinstance(call.prompt, str):
            answer = self._model.ask("completions", {"prompt": call.prompt, **body})
            text = answer["choices"][0]["text"]
        else:
            answer = self._model.ask("chat/completions", {"messages": call.prompt, **body})
            text = answer["choices"][0]["message"]["content"]
        return text, answer["usage"]["completion_tokens"]

    def close(self) -> None:
        self._model.close()


class Server:
    """`python -m llama_cpp.server` on a free port."""

    def __init__(self, path: str, threads: int) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        options = {
            "model": path,
            "host": "127.0.0.1",
            "port": port,
            "n_ctx": CONTEXT,
            "n_threads": threads,
            "n_threads_batch": threads,
            "logits_all": False,
            "verbose": False,
        }
        arguments = [part for name, value in options.items() for part in (f"--{name}", str(value))]
        self._process = subprocess.Popen([sys.executable, "-m", "llama_cpp.server", *arguments])
        self._port = port
        try:
            self._wait()
        except BaseException:
            self.close()
            raise

    def ask(self, what: str, body: dict[str, Any]) -> Any:
        return self._request("POST", f"/v1/{what}", json.dumps(body))

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()

    def _request(self, method: str, path: str, body: str | None = None) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self._port)
        try:
            connection.request(method, path, body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            text = response.read()
        finally:
            connection.close()
        if response.status != 200:
            raise RuntimeError(f"the server answered {response.status}: {text[:200]!r}")
        return json.loads(text)

    def _wait(self) -> None:
        until = time.perf_counter() + STARTING
        while self._process.poll() is None and time.perf_counter() < until:
            with contextlib.suppress(OSError):
                self._request("GET", "/v1/models")
                return
            time.sleep(0.2)
        raise RuntimeError("llama_cpp.server does not answer")


class InProcess:
    """The same calls of a `Llama` here, without HTTP."""

    def __init__(self, path: str, threads: int) -> None:
        self._llama = llama_cpp.Llama(
            path, n_ctx=CONTEXT, n_threads=threads, n_threads_batch=threads, verbose=False
        )

    def ask(self, what: str, body: dict[str, Any]) -> Any:
        if "grammar" in body:
            body["grammar"] = llama_cpp.LlamaGrammar.from_string(body["grammar"], verbose=False)
        chat = what == "chat/completions"
        create = self._llama.create_chat_completion if chat else self._llama.create_completion
        return create(**body)

    def close(self) -> None:
        self._llama.close()


def _grammar(like: dict[str, Any]) -> str:
    if "schema" in like:
        return str(json_schema_to_gbnf(json.dumps(like["schema"])))
    if "choices" in like:
        return "root ::= " + " | ".join(map(json.dumps, like["choices"]))
    return str(like["gbnf"])
