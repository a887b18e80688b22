"""The command line: exit codes, errors in one line, and the commands over a fake engine."""

import errno
import inspect
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from contextlib import nullcontext
from pathlib import Path

import msgspec
import pytest
from support.fake_engine import FakeEngine, tiny_chat_template

import stolon
from stolon import cli
from stolon.commands import COMMANDS, chat, models
from stolon.commands import run as run_command
from stolon.errors import (
    ContextLengthExceeded,
    DownloadError,
    InvalidRequest,
    ModelNotFound,
    Overloaded,
)
from stolon.srt.protocol import Sampling

TESTS = Path(__file__).resolve().parent.parent


@pytest.fixture
def engine(monkeypatch):
    """The engine of every program and command of a test."""
    fake = FakeEngine({"color": "blue"}, default="fine", chat_template=tiny_chat_template())
    monkeypatch.setattr(stolon, "Engine", lambda *_, **__: fake, raising=False)
    stolon.set_default_backend(fake)
    yield fake
    stolon.set_default_backend(None)
    fake.close()


def run_cli(*args, **options):
    command = [sys.executable, "-m", "stolon.cli", *args]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def test_the_package_can_be_run_as_a_module():
    command = [sys.executable, "-m", "stolon", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("stolon ")


def test_help_is_light():
    code = (
        "import sys; from stolon.cli import build_parser; build_parser().format_help();"
        "heavy = {'torch', 'numpy', 'pydantic', 'fastapi', 'msgspec', 'stolon.lang', 'stolon.srt'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("command", [command.NAME for command in COMMANDS])
def test_every_command_has_help(command, capsys):
    with pytest.raises(SystemExit) as caught:
        cli.main([command, "--help"])
    assert caught.value.code == 0
    assert "--debug" in capsys.readouterr().out


def test_version(capsys):
    with pytest.raises(SystemExit) as caught:
        cli.main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"stolon {stolon.__version__}\n"


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (ModelNotFound("no model 'x'", hint="try y"), 2, "stolon: error: no model 'x' (try y)\n"),
        (InvalidRequest("bad", where="a.py:3"), 2, "stolon: error: bad [at a.py:3]\n"),
        (DownloadError("no network"), 1, "stolon: error: no network\n"),
        (Overloaded("full"), 1, "stolon: error: full\n"),
        (OSError(98, "Address already in use"), 1, "[Errno 98] Address already in use\n"),
    ],
)
def test_errors_are_one_line(monkeypatch, capsys, error, code, line):
    def fail(args):
        raise error

    monkeypatch.setattr(models, "run", fail)
    assert cli.main(["models"]) == code
    assert capsys.readouterr().err.endswith(line)
    with pytest.raises(type(error)):
        cli.main(["models", "--debug"])


def test_ctrl_c(monkeypatch, capsys):
    def interrupt(args):
        raise KeyboardInterrupt

    monkeypatch.setattr(models, "run", interrupt)
    assert cli.main(["models"]) == 130
    assert capsys.readouterr().err == "stolon: interrupted\n"
    with pytest.raises(KeyboardInterrupt):
        cli.main(["models", "--debug"])


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


def test_models(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cli.main(["models"]) == 0
    header, row, *_ = capsys.readouterr().out.splitlines()
    assert header.split() == ["NAME", "CACHED", "SIZE", "PATH", "WHAT"]
    assert row.split()[:5] == ["smollm2-135m", "no", "98", "MB", "-"]
    assert cli.main(["models", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[0])["cached"] is False


def test_pull_of_what_is_not_there(capsys):
    assert cli.main(["pull", "smollm"]) == 2
    assert "did you mean 'smollm2-135m'?" in capsys.readouterr().err
    assert cli.main(["pull", ""]) == 2
    assert "there is no model ''" in capsys.readouterr().err


def test_pull_checks_a_path(tmp_path, capsys):
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUF\x03")
    assert cli.main(["pull", str(path)]) == 1
    assert capsys.readouterr().err.startswith("stolon: error: ")


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


PROGRAM = """
from __future__ import annotations
WORD = "sky"

@sl.function
def paint(s, thing: str, times: int = 1):
    s += f"The {thing} {times} " + sl.gen("color")
"""


def test_run_the_only_function(engine, tmp_path, capsys):
    file = tmp_path / "p.py"
    file.write_text(PROGRAM)
    command = ["run", str(file), "--seed", "3", "--arg", "thing=a=b", "--arg", "times=2"]
    assert cli.main(command) == 0
    out, err = capsys.readouterr()
    assert out == "The a=b 2 blue\n"
    assert "paint" in err
    assert "gen color" in err
    assert cli.main([*command, "--no-trace"]) == 0
    assert capsys.readouterr().err == ""


def test_run_a_script(engine, tmp_path, capsys):
    (tmp_path / "beside.py").write_text("NAME = 'sea'\n")
    file = tmp_path / "p.py"
    file.write_text(
        PROGRAM + "import sys, beside\nif __name__ == '__main__':\n"
        "    print(sys.argv[1:], paint.run(beside.NAME)['color'])\n"
    )
    assert cli.main(["run", str(file), "--", "--x", "1"]) == 0
    assert capsys.readouterr().out == "['--x', '1'] blue\n"
    assert "beside" not in sys.path
    assert cli.main(["run", str(file), "a", "--", "b", "--", "c"]) == 0
    assert capsys.readouterr().out == "['a', 'b', '--', 'c'] blue\n"
    for option in (["--seed", "1"], ["--trace"], ["--no-trace"], ["--arg", "a=1"]):
        assert cli.main(["run", str(file), *option, "--", "--x"]) == 2
        assert f"{option[0]} is for a file that only defines" in capsys.readouterr().err


@pytest.mark.parametrize("rest", [["extra"], ["--", "extra"], ["--arg", "thing=a", "--", "extra"]])
def test_arguments_of_a_file_that_reads_none_are_refused(engine, tmp_path, capsys, rest):
    file = tmp_path / "p.py"
    file.write_text(PROGRAM)
    assert cli.main(["run", str(file), *rest]) == 2
    err = capsys.readouterr().err
    assert "the argument 'extra' is for a file with code of its own" in err
    assert "--arg NAME=VALUE" in err


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("x = 1\n", "defines 0 programs"),
        (PROGRAM + PROGRAM.replace("paint", "draw"), "defines 2 programs"),
        ("def f(:\n", "not valid Python"),
        (PROGRAM, "needs --arg thing="),
    ],
)
def test_run_refuses(engine, tmp_path, capsys, source, message):
    file = tmp_path / "p.py"
    file.write_text(source.replace("from __future__ import annotations\n", ""))
    assert cli.main(["run", str(file)]) == 2
    assert message in capsys.readouterr().err


MISTAKES = {
    "body": ("    s += sl.gen('x') + helper()\n", "f.run()\n"),
    "async": ("    helper()\n", "f.run()\n"),
    "batch": ("    helper()\n", "f.run_batch([{}])\n"),
    "argument": ("    s += 'x'\n", "f.run(nothing=1)\n"),
    "cause": (
        "    helper()\n",
        "try:\n    f.run()\nexcept KeyError as e:\n    raise OSError from e\n",
    ),
}


@pytest.mark.parametrize("kind", MISTAKES)
def test_a_mistake_in_the_program_shows_its_lines_alone(engine, tmp_path, capsys, kind):
    body, call = MISTAKES[kind]
    define = "async def" if kind == "async" else "def"
    file = tmp_path / "p.py"
    file.write_text(
        f"def helper():\n    {{}}['nothing']\n\n@sl.function\n{define} f(s):\n{body}\n{call}"
    )
    assert cli.main(["run", str(file)]) == 1
    err = capsys.readouterr().err
    assert "Traceback (most recent call last)" in err
    assert "nothing" in err
    frames = re.findall(r'File "(.*?)"', err)
    assert frames
    assert set(frames) == {str(file)}
    with pytest.raises((KeyError, TypeError, OSError)):
        cli.main(["run", str(file), "--debug"])


def test_an_error_of_stolon_stays_one_line(engine, tmp_path, capsys):
    file = tmp_path / "p.py"
    file.write_text("@sl.function\ndef f(s):\n    s += sl.gen('x', max_tokens=-1)\nf.run()\n")
    assert cli.main(["run", str(file)]) == 2
    err = capsys.readouterr().err
    assert err.startswith("stolon: error: ")
    assert err.count("\n") == 1


def test_run_without_a_file(tmp_path, capsys):
    with pytest.raises(SystemExit):
        cli.main(["run"])
    assert capsys.readouterr().err.endswith("are required: FILE\n")
    assert cli.main(["run", str(tmp_path / "none.py")]) == 2
    assert "can't be read" in capsys.readouterr().err


def body(s, name, count: int, share: float = 0.5, really: "bool" = False, items: list = ()): ...


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["name=a", "count=3"], {"name": "a", "count": 3}),
        (["name=1", "count=-3", "share=2"], {"name": "1", "count": -3, "share": 2.0}),
        (["name=", "count=0", "really=TRUE"], {"name": "", "count": 0, "really": True}),
    ],
)
def test_arguments(given, expected):
    assert run_command.parse_arguments(inspect.signature(body), given) == expected


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["name"], "NAME=VALUE"),
        (["name=a"], "needs --arg count"),
        (["name=a", "count=x"], "'x' is not int"),
        (["name=a", "count=1", "really=maybe"], "'maybe' is not bool \\(give true or false\\)"),
        (["name=a", "count=1", "other=2"], "no parameter 'other'"),
        (["name=a", "name=b", "count=1"], "given twice"),
        (["name=a", "count=1", "items=[]"], "type list"),
    ],
)
def test_bad_arguments(given, message):
    with pytest.raises(InvalidRequest, match=message.replace("[", r"\[")):
        run_command.parse_arguments(inspect.signature(body), given)


def test_chat_keeps_tokens(engine, capsys):
    talk = chat.Conversation(engine, system="Be brief.")
    talk.answer("Hello", Sampling(max_tokens=8))
    first = list(talk.tokens)
    talk.answer("Again", Sampling(max_tokens=8))
    assert talk.tokens[: len(first)] == first
    text = engine.tokenizer.decode(talk.tokens, skip_special=False)
    expected = engine.chat_template.render(
        [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Hello"},
            {"role": "assistant", "content": "fine"},
            {"role": "user", "content": "Again"},
            {"role": "assistant", "content": "fine"},
        ]
    )
    assert expected.startswith(text)
    assert capsys.readouterr().out == "fine\nfine\n"


def chatting(monkeypatch, engine, typed, **info):
    """Run `stolon chat` with bytes on stdin."""
    for name, value in info.items():
        engine.info = msgspec.structs.replace(engine.info, **{name: value})
    monkeypatch.setattr(stolon, "Engine", lambda *_, **__: nullcontext(engine))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(typed), "utf-8"))
    return cli.main(["chat"])


def test_chat_survives_bytes_that_are_no_text(engine, monkeypatch, capsys):
    assert chatting(monkeypatch, engine, b"caf\xe9\nagain\n") == 0
    assert capsys.readouterr().out == "fine\nfine\n"
    assert "caf\ufffd" in engine.received[0].prompt


def test_chat_says_that_the_context_is_full(engine, monkeypatch, capsys):
    engine.default = ContextLengthExceeded("the prompt has 99 tokens")
    assert chatting(monkeypatch, engine, b"long\n") == 1
    assert capsys.readouterr().err == "stolon: the prompt has 99 tokens\n"
    engine.answers = {}
    engine.default = "fine"
    assert chatting(monkeypatch, engine, b"Hello\n", context_length=4) == 0
    err = capsys.readouterr().err
    assert err == (
        "stolon: the context of 4 tokens is full, the answer ends here; /reset frees it\n"
    )


def test_chat_without_room_for_a_message(engine, monkeypatch, capsys):
    def answer(prompt, gen):
        if "more" in prompt:
            raise ContextLengthExceeded("the prompt has 99 tokens")
        return "fine"

    engine.default = answer
    assert chatting(monkeypatch, engine, b"Hello\nmore\n/reset\nHello\n/quit\n") == 1
    out, err = capsys.readouterr()
    assert out == "fine\nfine\n"
    assert err.count("\n") == 1
    assert "tokens are used; /reset frees them" in err


def test_chat_commands(engine, capsys):
    talk = chat.Conversation(engine)
    talk.answer("Hello", Sampling(max_tokens=8))
    chat._command("/stats", engine, talk)
    assert f"history {len(talk.tokens)} of" in capsys.readouterr().out
    assert chat._command("/system Be kind.", engine, talk).system == "Be kind."
    assert chat._command("/reset", engine, talk).tokens == []
    assert chat._command("/nonsense", engine, talk) is talk
    assert "unknown command /nonsense" in capsys.readouterr().out
