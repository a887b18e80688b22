"""The command line: help, exit codes, errors in one line, and the models that it knows."""

import json
import subprocess
import sys

import pytest

import stolon
from stolon import cli
from stolon.commands import COMMANDS, models
from stolon.errors import (
    DownloadError,
    InvalidRequest,
    ModelNotFound,
    Overloaded,
)


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
    assert cli.main(["pull", str(path)]) == 2
    assert capsys.readouterr().err.startswith("stolon: error: ")
