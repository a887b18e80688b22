"""`stolon serve`: its options, and what it refuses before it listens."""

import errno
import socket
import subprocess
import sys

import pytest
from support.fake_engine import FakeEngine

import stolon
from stolon import cli
from stolon.errors import (
    InvalidRequest,
    ModelNotFound,
)


def test_serve_refuses_an_open_bind(capsys):
    assert cli.main(["serve", "--host", "0.0.0.0", "--port", "0"]) == 2
    assert "--insecure" in capsys.readouterr().err


def test_serve_passes_options(monkeypatch, tmp_path):
    from stolon.srt.server import launch

    calls = []
    monkeypatch.setattr(launch, "serve", lambda *args, **kwargs: calls.append((args, kwargs)))
    key = tmp_path / "key"
    key.write_text("secret\n")
    options = ["--port", "0", "--threads", "2", "--max-queued", "3", "--api-key-file", str(key)]
    assert cli.main(["serve", "--model", "m", *options]) == 0
    ((args, kwargs),) = calls
    assert args == ("m",)
    assert (kwargs["port"], kwargs["threads"], kwargs["api_key"]) == (0, 2, "secret")
    assert kwargs["limits"].max_queued == 3
    assert cli.main(["serve", *options, "--api-key", "k"]) == 2


def test_serve_stops_in_order_when_its_input_ends_before_it_serves():
    code = (
        "import time\n"
        "from stolon import cli\n"
        "from stolon.srt.server import launch\n"
        "launch.serve = lambda *_, **__: time.sleep(30)\n"
        "cli.main(['serve', '--stop-at-eof'])\n"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


@pytest.mark.parametrize("option", ["kv_tokens", "context_length"])
def test_an_engine_with_room_for_no_request_is_refused(option):
    with pytest.raises(InvalidRequest, match=f"{option} must be an integer between 16 and"):
        stolon.Engine("none", **{option: 15})
    with pytest.raises(ModelNotFound):
        stolon.Engine("none", **{option: 16})


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_serve_on_a_busy_port(capsys, host):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert cli.main(["serve", "--host", host, "--port", str(port)]) == 2
    expected = f"stolon: error: {host}:{port} is in use (choose another with --port)\n"
    assert capsys.readouterr().err == expected


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a..b", "x" * 70, "192.0.2.1", "a\0b"])
def test_serve_on_a_bad_host(capsys, host):
    assert cli.main(["serve", "--host", host, "--port", "0"]) == 2
    err = capsys.readouterr().err
    assert "choose another with --host" in err
    assert err.count("\n") == 1


def test_serve_when_another_server_listens_first(monkeypatch, capsys):
    from stolon.srt.server import launch

    def listens_late(app, listener, *, banner):
        raise OSError(errno.EADDRINUSE, "Address already in use")

    monkeypatch.setattr(launch, "run_server", listens_late)
    monkeypatch.setattr(launch, "create_app", lambda *_, **__: None)
    with pytest.raises(InvalidRequest, match="is in use"):
        launch.serve("m", port=0, launch=lambda _: FakeEngine())


@pytest.mark.parametrize("content", [None, b"\xff"])
def test_serve_with_an_unreadable_key_file(tmp_path, capsys, content):
    path = tmp_path / "key"
    if content is not None:
        path.write_bytes(content)
    assert cli.main(["serve", "--port", "0", "--api-key-file", str(path)]) == 2
    assert f"--api-key-file {path} can't be read: " in capsys.readouterr().err


@pytest.mark.parametrize("value", ["-1", "70000", "x"])
def test_bad_ports(value):
    with pytest.raises(SystemExit) as caught:
        cli.main(["serve", "--port", value])
    assert caught.value.code == 2
