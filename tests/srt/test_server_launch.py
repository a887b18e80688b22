"""`serve`: the bind rules, and the whole program in a process of its own."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest
import support.fake_engine_process
from support.ports import listening_ports

from stolon.errors import InvalidRequest
from stolon.srt.server.launch import public_name
from stolon.srt.server.listener import allowed_hosts, check_bind

SCRIPT = Path(support.fake_engine_process.__file__)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.0.0.2"])
def test_loopback_needs_no_key(host):
    check_bind(host, api_key=None, insecure=False)
    assert allowed_hosts(host) >= {"localhost", "127.0.0.1", "[::1]"}


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org", "", "127.1.evil"])
def test_other_binds_need_a_key_or_a_word(host):
    with pytest.raises(InvalidRequest, match="without a key") as caught:
        check_bind(host, api_key=None, insecure=False)
    assert "--insecure" in caught.value.hint
    check_bind(host, api_key="k", insecure=False)
    check_bind(host, api_key=None, insecure=True)
    assert allowed_hosts(host) is None


def test_an_empty_key_is_no_key():
    with pytest.raises(InvalidRequest, match="empty"):
        check_bind("127.0.0.1", api_key=" ", insecure=False)


def test_public_names_hide_paths(tmp_path):
    file = tmp_path / "small-q4.gguf"
    file.touch()
    assert public_name(str(file)) == "small-q4"
    assert public_name(str(tmp_path)) == tmp_path.name
    assert public_name("smollm2-135m") == "smollm2-135m"


class Program:
    """`serve` in a process; its banner has been read."""

    def __init__(self, model: str, drain: float) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(SCRIPT.parent / "serve_fake.py"), model, str(drain)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        engine, folder = self.process.stdout.readline().split()
        self.engine, self.folder = int(engine), Path(folder)
        self.banner = self.process.stdout.readline()
        self.url = self.banner.split(" at ")[1].split("/v1")[0]

    def stop(self, number: int) -> int:
        self.process.send_signal(number)
        status = self.process.wait(15)
        self.process.stdout.close()
        return status


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_server_from_start_to_end(number):
    program = Program("fake", 10)
    assert program.banner == (f"stolon: serving fake at {program.url}/v1  (Ctrl-C to stop)\n")
    with httpx.Client(base_url=program.url) as http:
        answer = http.post("/v1/completions", json={"prompt": "a"})
        assert answer.json()["choices"][0]["text"] == "Hello from afar"
        assert http.get("/ready").status_code == 200
        assert http.get("/live").status_code == 200
        assert http.get("/health", headers={"host": "evil.example"}).status_code == 403
        port = int(program.url.rsplit(":", 1)[1])
        assert listening_ports([program.process.pid, program.engine]) == {port}
    assert program.stop(number) == 0
    assert not program.folder.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(program.engine, 0)


def test_a_stream_in_flight_ends_with_an_error_when_the_drain_is_over():
    program = Program("stuck", 0.2)
    texts = []

    def read() -> None:
        body = {"messages": [{"role": "user", "content": "x"}], "stream": True}
        with httpx.stream(
            "POST", f"{program.url}/v1/chat/completions", json=body, timeout=20
        ) as answer:
            for text in answer.iter_text():
                texts.append(text)
                begun.set()

    begun = threading.Event()
    reader = threading.Thread(target=read)
    reader.start()
    assert begun.wait(10)
    assert program.stop(signal.SIGTERM) == 0
    reader.join(5)
    assert '"code":"engine_closed"' in "".join(texts)
    assert texts[-1].endswith("data: [DONE]\n\n")
    assert not program.folder.exists()


def test_the_http_process_outlives_its_engine():
    program = Program("stuck", 1)
    body = {"messages": [{"role": "user", "content": "x"}], "stream": True}
    with httpx.Client(base_url=program.url, timeout=20) as http:
        with http.stream("POST", "/v1/chat/completions", json=body) as answer:
            pieces = answer.iter_text()
            next(pieces)
            os.kill(program.engine, signal.SIGKILL)
            rest = "".join(pieces)
        assert '"code":"engine_closed"' in rest
        assert rest.endswith("data: [DONE]\n\n")
        assert http.post("/v1/completions", json={"prompt": "a"}).status_code == 503
        assert http.get("/ready").status_code == 503
        assert http.get("/health").status_code == 200
    assert program.stop(signal.SIGTERM) == 0
