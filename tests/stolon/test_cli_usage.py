"""What the command line names and can't be used is a mistake of the caller: exit code 2, and one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stolon import cli

PROGRAM = "print('it ran')\n"


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    Path("empty").mkdir()
    Path("text.txt").write_text("this is text, and long enough for the header of a model file")
    Path("short.txt").write_text("short")
    Path("cut.gguf").write_bytes(b"GGUF\x03")
    Path("program.py").write_text(PROGRAM)
    return tmp_path


def usage(capsys: pytest.CaptureFixture[str], *command: str) -> str:
    """The one line on stderr of a command that exits with 2."""
    try:
        code: Any = cli.main(list(command))
    except SystemExit as ended:
        code = ended.code
    out, err = capsys.readouterr()
    assert code == 2, err
    assert err.startswith("stolon: error: ")
    assert err.count("\n") == 1
    assert "it ran" not in out
    return err


MODELS = {
    "absent": "no model 'absent'",
    "./absent.gguf": "no model './absent.gguf'",
    "": "no model ''",
    "hf:no-slash": "not a Hugging Face id",
    "empty": "no config.json and no tokenizer.json and no model.safetensors",
    "text.txt": "not a GGUF file",
    "short.txt": "not a GGUF file",
    "cut.gguf": "too few for a GGUF header",
}
COMMANDS = {
    "run": ("run", "program.py", "--model"),
    "chat": ("chat", "--model"),
    "serve": ("serve", "--port", "0", "--model"),
    "pull": ("pull",),
    "bench": ("bench", "--quick", "--model"),
    "check": ("check", "jsts", ".", "--tokenizer"),
}


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_model_that_can_not_be_used(
    capsys: pytest.CaptureFixture[str], command: str, model: str
) -> None:
    told = usage(capsys, *COMMANDS[command], model)
    assert MODELS[model] in told
    # One loader: whatever the command, the same words.
    assert told == usage(capsys, *COMMANDS["check"], model)


WRONG: list[tuple[str, ...]] = [
    ("run", "absent.py"),
    ("run", "empty"),
    ("run", "cut.gguf"),
    ("check", "jsts", "absent"),
    ("check", "jsts", "program.py"),
    ("check", "maskbench", "empty"),
    ("check", "jsts", "empty", "--ratchet", "absent"),
    ("check", "jsts", "empty", "--ratchet", "empty"),
    ("check", "jsts", "empty", "--ratchet", "text.txt"),
    ("check", "jsts", ".", "--ratchet", "absent/new", "--update"),
    ("check", "jsts", ".", "--json", "absent/out"),
    ("check", "jsts", ".", "--json", "empty"),
    ("bench", "--json", "absent/out"),
    ("bench", "--json", "empty"),
    ("bench", "--plot", "empty"),
    ("bench", "--peers", "llama.cpp", "--peer-python", "./absent"),
    ("serve", "--api-key-file", "absent"),
    ("serve", "--api-key-file", "empty"),
    ("serve", "--port", "99999"),
    ("models", "extra"),
    ("chat", "--unknown"),
    ("absent",),
    (),
]


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("command", WRONG, ids=" ".join)
def test_arguments_that_are_wrong(
    capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    usage(capsys, *command)


OUT_OF_RANGE: list[tuple[str, ...]] = [
    ("serve", "--kv-tokens", "1"),
    ("serve", "--context-length", "15"),
    ("serve", "--max-running", "5000"),
    ("serve", "--threads", "2000"),
    ("chat", "--kv-tokens", "1"),
    ("chat", "--temperature", "500"),
    ("chat", "--top-p", "0"),
    ("chat", "--max-tokens", "-1"),
]


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("command", OUT_OF_RANGE, ids=" ".join)
def test_options_are_judged_before_a_model_is_looked_for(
    capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    told = usage(capsys, *command, "--model", "absent")
    assert command[1].removeprefix("--").replace("-", "_") in told
