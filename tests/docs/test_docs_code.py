"""Every Python block of the README and the tutorial runs.

``python no-run`` ones are only compiled, and ``python mcp`` ones need the optional package mcp.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import stolon as sl
from stolon.srt.loaders import list_models

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = ["README.md", "docs/language.md"]
BLOCK = re.compile(r"^```(python[^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: str) -> Iterator[tuple[bool, str]]:
    """(to be run, source); blank lines in front make line numbers those of the page."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for found in BLOCK.finditer(text):
        line = text.count("\n", 0, found.start(2))
        needs = found[1].removeprefix("python").strip()
        run = not needs or (needs != "no-run" and importlib.util.find_spec(needs) is not None)
        yield run, "\n" * line + found[2]


@pytest.mark.parametrize("page", PAGES)
def test_blocks_compile(page):
    found = list(blocks(page))
    assert found
    for _, source in found:
        ast.parse(source, filename=page)


@pytest.mark.parametrize("page", PAGES)
def test_blocks_run(page, tmp_path, monkeypatch):
    if not any(entry.cached for entry in list_models() if entry.name == "smollm2-135m"):
        pytest.skip("the default model is not in the cache: `stolon pull smollm2-135m`")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "docs"}
    with sl.Engine(threads=min(2, os.cpu_count() or 1)) as engine:
        sl.set_default_backend(engine)
        try:
            for run, source in blocks(page):
                if run:
                    # Without this module's own `from __future__ import`.
                    code = compile(source, str(ROOT / page), "exec", dont_inherit=True)
                    exec(code, names)
        finally:
            sl.set_default_backend(None)
        engine.check_integrity()


LINK = re.compile(r"\]\((?!https?://|#)([^)#]+)")
NAMED = re.compile(
    r"`((?:stolon|lang|srt|constrained|radix|kernels|docs|examples|bench|scripts)/[\w./]+)`"
)


@pytest.mark.parametrize("page", [*PAGES, "docs/README.md", "bench/README.md"])
def test_named_files_exist(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    for name in LINK.findall(text):
        assert ((ROOT / page).parent / name).exists(), name
    for name in NAMED.findall(text):
        assert (ROOT / name.rstrip(".")).exists(), name


def test_the_readme_says_what_the_examples_need():
    table = re.findall(r"^\| (`\w+`.*?) \| (.+?) \|$", (ROOT / "README.md").read_text(), re.M)
    shown = {name: says for names, says in table for name in re.findall(r"`(\w+)`", names)}
    for path in (ROOT / "examples").glob("[a-z]*.py"):
        options = re.findall(r'add_argument\("[a-z](.*)\)', path.read_text(encoding="utf-8"))
        needed = [option for option in options if 'nargs="?"' not in option]
        takes = re.search("takes `(.+?)`", shown[path.stem])
        assert len(takes[1].split() if takes else []) == len(needed), path.stem


def test_the_limits_of_the_readme_are_those_of_the_code():
    from stolon.constrained.schema.numbers import MAX_REMAINDERS
    from stolon.srt.messages.sampling import _RANGES, MAX_BIAS

    rows = dict(re.findall(r"^\| (.+?) \| (.+?) \|$", (ROOT / "README.md").read_text(), re.M))
    ranges = {name: f"{low:g} to {high:g}" for name, low, high in _RANGES}
    assert rows["`logit_bias` of a token"] == f"{-MAX_BIAS:,.0f} to {MAX_BIAS:,.0f}"
    for name in ("repetition_penalty", "temperature"):
        assert rows[f"`{name}`"] == ranges[name]
    assert ranges["presence_penalty"] == ranges["frequency_penalty"]
    assert rows["`presence_penalty`, `frequency_penalty`"] == ranges["presence_penalty"]
    assert rows["`multipleOf` of a schema"].startswith(f"{MAX_REMAINDERS:,}, ")
