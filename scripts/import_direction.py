"""Checks which folder imports which, and that no package code loads or runs foreign code.

    stolon → lang → srt → {constrained, radix, kernels}

The three at the end import neither each other nor anything above. `stolon.errors` is open to all.
`lang` sees of the runtime only its public surface and a few named modules.
Usage: import_direction.py [ROOT]
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

FOLDERS = ("stolon", "lang", "srt", "constrained", "radix", "kernels")

ALLOWED: dict[str, frozenset[str]] = {
    "stolon": frozenset(FOLDERS),
    "lang": frozenset({"lang", "srt"}),
    "srt": frozenset({"srt", "constrained", "radix", "kernels"}),
    "constrained": frozenset({"constrained"}),
    "radix": frozenset({"radix"}),
    "kernels": frozenset({"kernels"}),
}

# What the language may know of the runtime. `stolon.srt` itself is its public surface.
LANG_SEES = (
    "stolon.srt.protocol",
    "stolon.srt.client",
    "stolon.srt.tokenizer",
    "stolon.srt.seeds",
    "stolon.srt.remote_grammar",
)

FORBIDDEN_MODULES = frozenset({"pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal"})
FORBIDDEN_CALLS = frozenset({"eval", "exec", "torch.load", "yaml.load", "os.system", "os.popen"})


def main(argv: list[str]) -> int:
    root = Path(argv[0]) if argv else Path(__file__).resolve().parent.parent
    problems = list(check(root))
    for problem in problems:
        print(problem)
    return 1 if problems else 0


def check(root: Path) -> Iterator[str]:
    """Yield one ``file:line: what`` per breach in the code folders under `root`."""
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*.py")):
            shown = path.relative_to(root)
            tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(shown))
            package = ("stolon", *([] if folder == "stolon" else [folder]))
            package += path.relative_to(root / folder).parent.parts
            for line, name in _imports(tree, package):
                reason = _judge(root, folder, name)
                if reason:
                    yield f"{shown}:{line}: {reason}"
            for line, reason in _forbidden(tree):
                yield f"{shown}:{line}: {reason}"


def _imports(tree: ast.Module, package: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """(line, full dotted name) of every import; relative and literal dynamic ones are resolved.

    ``from a import b`` gives ``a.b``, since b may be a module.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = node.module.split(".") if node.module else []
            if node.level:
                base = [*package[: len(package) - node.level + 1], *base]
            for alias in node.names:
                yield node.lineno, ".".join([*base, alias.name])
        elif isinstance(node, ast.Call) and node.args:
            called = _dotted(node.func)
            first = node.args[0]
            if (
                called in ("importlib.import_module", "import_module", "__import__")
                and isinstance(first, ast.Constant)
                and isinstance(first.value, str)
            ):
                yield node.lineno, first.value


def _judge(root: Path, folder: str, name: str) -> str | None:
    """Why code in `folder` must not import `name`, or None."""
    parts = name.split(".")
    if parts[0] in FORBIDDEN_MODULES:
        return f"{parts[0]} is not used here: data is data"
    if parts[0] != "stolon":
        return None
    if len(parts) > 1 and parts[1] == "errors":
        return None
    target = parts[1] if len(parts) > 1 and parts[1] in FOLDERS[1:] else "stolon"
    if target not in ALLOWED[folder]:
        return f"{folder} must not import {name}"
    if folder == "lang" and target == "srt":
        # stolon.srt.X is a name of the public surface, unless it is a module.
        public = len(parts) == 2 or (len(parts) == 3 and not _is_module(root, parts[1:]))
        if not public and not any(name == ok or name.startswith(ok + ".") for ok in LANG_SEES):
            return f"lang must not import {name}: only stolon.srt and {', '.join(LANG_SEES)}"
    return None


def _is_module(root: Path, parts: list[str]) -> bool:
    path = root.joinpath(*parts)
    return path.is_dir() or path.with_suffix(".py").is_file()


def _forbidden(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = _dotted(node.func)
        if called in FORBIDDEN_CALLS:
            yield node.lineno, f"{called}() is not used here: data is data"
        for keyword in node.keywords:
            value = keyword.value
            on = isinstance(value, ast.Constant) and value.value is True
            if keyword.arg in ("shell", "trust_remote_code", "allow_pickle") and on:
                yield node.lineno, f"{keyword.arg}=True is not used here: data is data"


def _dotted(node: ast.expr) -> str:
    """``a.b.c`` of a plain chain of names, else ""."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    return ".".join([node.id, *reversed(names)])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
