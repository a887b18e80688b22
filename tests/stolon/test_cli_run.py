"""`stolon run`: a file that is a script or one program, its arguments, and its mistakes."""

import inspect
import re
import sys

import pytest
from support.default_engine import default_engine

from stolon import cli
from stolon.commands import run as run_command
from stolon.errors import (
    InvalidRequest,
)

PROGRAM = """
from __future__ import annotations
WORD = "sky"

@sl.function
def paint(s, thing: str, times: int = 1):
    s += f"The {thing} {times} " + sl.gen("color")
"""


@pytest.fixture
def engine(monkeypatch):
    with default_engine(monkeypatch) as fake:
        yield fake


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
    assert capsys.readouterr().err.startswith(
        "stolon: error: the following arguments are required: FILE"
    )
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
