"""The direction of imports, and that the check itself sees what it should."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "scripts" / "import_direction.py"


def run(root: Path) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(root)], capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr


def test_this_repository() -> None:
    code, output = run(ROOT)
    assert code == 0, output


BAD = [
    ("lang/a.py", "import stolon.kernels", "lang must not import stolon.kernels"),
    ("lang/a.py", "import stolon", "lang must not import stolon"),
    ("lang/a.py", "from stolon import cli", "lang must not import stolon.cli"),
    (
        "lang/a.py",
        "from stolon.srt.scheduler import Scheduler",
        "lang must not import stolon.srt.s",
    ),
    ("lang/a.py", "from stolon.srt import scheduler", "lang must not import stolon.srt.scheduler"),
    ("srt/a.py", "from stolon.lang import gen", "srt must not import stolon.lang"),
    ("radix/a.py", "from stolon.kernels import ops", "radix must not import stolon.kernels"),
    ("kernels/x/a.py", "from ...radix import tree", "kernels must not import stolon.radix"),
    (
        "constrained/a.py",
        "def f():\n    import stolon.srt",
        "constrained must not import stolon.srt",
    ),
    (
        "radix/a.py",
        "import importlib\nimportlib.import_module('stolon.srt')",
        "radix must not import",
    ),
    ("srt/a.py", "import pickle", "pickle is not used"),
    ("srt/a.py", "from dill import loads", "dill is not used"),
    ("srt/a.py", "import torch\ntorch.load('x')", "torch.load() is not used"),
    ("lang/a.py", "eval('1')", "eval() is not used"),
    ("stolon/a.py", "exec('1')", "exec() is not used"),
    ("stolon/a.py", "import subprocess\nsubprocess.run('x', shell=True)", "shell=True is not used"),
    ("stolon/a.py", "import yaml\nyaml.load('x')", "yaml.load() is not used"),
]


@pytest.mark.parametrize(("file", "source", "message"), BAD, ids=[f"{f}-{m}" for f, _, m in BAD])
def test_breach_is_found(tmp_path: Path, file: str, source: str, message: str) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text(source + "\n", encoding="utf-8")
    (tmp_path / "srt").mkdir(exist_ok=True)
    (tmp_path / "srt" / "scheduler.py").touch()
    code, output = run(tmp_path)
    assert code == 1
    line = source.count("\n") + 1
    assert output.startswith(f"{file}:{line}: ")
    assert message in output


GOOD = [
    ("lang/a.py", "from stolon.srt.protocol import Gen\nfrom stolon.srt import Engine"),
    ("lang/a.py", "from stolon.srt.seeds import derive_seed"),
    ("srt/a.py", "import stolon.radix\nfrom stolon.kernels.ops import Ops"),
    ("radix/a.py", "from stolon.errors import StolonError\nfrom stolon import errors"),
    ("kernels/x/a.py", "from ..ops import Ops\nfrom . import b"),
    ("stolon/a.py", "import stolon.lang\nmodel.eval()\npattern.exec('x')"),
]


@pytest.mark.parametrize(("file", "source"), GOOD)
def test_allowed_is_left_alone(tmp_path: Path, file: str, source: str) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text(source + "\n", encoding="utf-8")
    assert run(tmp_path) == (0, "")
