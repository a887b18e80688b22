"""Public suites as cases: MaskBench, the JSON-Schema-Test-Suite, the tests of Rust's regex crate."""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stolon.constrained.check.cases import Case, Instance
from stolon.constrained.schema.drafts import named
from stolon.errors import InvalidRequest

__all__ = ["jsts_cases", "maskbench_cases", "regex_cases", "remote_documents"]

_SEPARATORS = {"compact": (",", ":"), "pep": (", ", ": ")}


def maskbench_cases(
    folder: Path, *, draft: str | None = None, whitespace: str = "pep"
) -> list[Case]:
    """Every ``*.json`` of a folder (or of ``data`` in it): ``{"schema": …, "tests": […]}`` each."""
    name = named(draft).name if draft else None
    if (folder / "data").is_dir():
        folder = folder / "data"
    return [
        _schema_case(path.stem, entry, name, path, whitespace)
        for path in _files(folder, "*.json")
        for entry in (_read(path),)
    ]


def jsts_cases(
    folder: Path, *, draft: str = "2020-12", optional: bool = False, whitespace: str = "pep"
) -> list[Case]:
    """The required tests of a draft in a checkout of the suite (or a folder of such files).

    `optional` takes the folders ``optional`` and ``optional/format`` instead; there a format must
    assert, which here it always does.
    """
    name = named(draft).name
    short = "draft" + (str(int(name[6:])) if name.startswith("draft-") else name)
    for base in (folder / "tests" / short, folder / short):
        if base.is_dir():
            folder = base
            break
    if optional:
        folder = folder / "optional"
    cases: list[Case] = []
    for path in _files(folder, "**/*.json" if optional else "*.json"):
        stem = str(path.relative_to(folder).with_suffix(""))
        groups = _read(path)
        if not isinstance(groups, list) or not all(isinstance(group, dict) for group in groups):
            raise InvalidRequest("this is no file of the JSON-Schema-Test-Suite", where=str(path))
        cases += [
            _schema_case(f"{stem}: {_text(group, 'description')}", group, name, path, whitespace)
            for group in groups
        ]
    return _distinct(cases)


def remote_documents(folder: Path, prefix: str) -> dict[str, Any]:
    """The JSON files under a folder by their address under `prefix`; nothing is fetched."""
    return {
        prefix + path.relative_to(folder).as_posix(): _read(path)
        for path in _files(folder, "**/*.json")
    }


def regex_cases(folder: Path) -> list[Case]:
    """Tests of the regex crate that can be read as full matches: one instance each.

    The first match is the whole haystack: it must be accepted. No match at all: it must be
    rejected. Tests that depend on anything else are left out, and so is ``regex-lite.toml``: it is
    written for a crate whose classes are ASCII, and contradicts the other files.
    """
    if (folder / "testdata").is_dir():
        folder = folder / "testdata"
    cases: list[Case] = []
    for path in _files(folder, "**/*.toml"):
        stem = str(path.relative_to(folder).with_suffix(""))
        if stem == "regex-lite":
            continue
        entries = _read(path).get("test", [])
        if not isinstance(entries, list):
            raise InvalidRequest("'test' must be a list of tables", where=str(path))
        for entry in entries:
            try:
                verdict = _full_match(entry)
            except (AttributeError, KeyError, IndexError, TypeError):
                raise InvalidRequest(
                    "this is no test of the regex crate", where=str(path)
                ) from None
            if verdict is not None:
                instance = Instance("haystack", entry["haystack"], verdict)
                cases.append(
                    Case(
                        name=f"{stem}: {_text(entry, 'name')}",
                        kind="regex",
                        pattern=entry["regex"],
                        instances=[instance],
                    )
                )
    return _distinct(cases)


_OTHER_SEMANTICS = (
    *("case-insensitive", "unescape", "bounds", "anchored", "line-terminator", "match-limit"),
)


def _full_match(entry: dict[str, Any]) -> bool | None:
    """Whether the whole haystack must match; None if the test says nothing of that."""
    if not isinstance(entry.get("regex"), str) or not isinstance(entry.get("haystack"), str):
        return None
    if not all(entry.get(option, True) for option in ("compiles", "unicode", "utf8")):
        return None
    if any(entry.get(option) for option in _OTHER_SEMANTICS):
        return None
    if entry.get("match-kind", "leftmost-first") != "leftmost-first":
        return None
    if entry.get("search-kind", "leftmost") != "leftmost":
        return None
    if not entry["matches"]:
        return False
    first = entry["matches"][0]
    if isinstance(first, dict):
        first = first["span"] if "span" in first else first["spans"]
    if first and isinstance(first[0], list):
        first = first[0]
    return True if first == [0, len(entry["haystack"].encode())] else None


def _schema_case(name: str, entry: Any, draft: str | None, path: Path, whitespace: str) -> Case:
    if not isinstance(entry, dict) or "schema" not in entry:
        raise InvalidRequest("this file has no 'schema'", where=str(path))
    item, key = _SEPARATORS[whitespace]
    instances = []
    tests = entry.get("tests", [])
    if not isinstance(tests, list) or not all(map(_is_test, tests)):
        raise InvalidRequest(
            "'tests' must be a list of objects with 'data' and a true or false 'valid'",
            where=str(path),
        )
    for test in tests:
        text = json.dumps(test["data"], ensure_ascii=False, separators=(item, key))
        if not _encodable(text):
            text = json.dumps(test["data"], separators=(item, key))
        instances.append(Instance(_text(test, "description"), text, test["valid"]))
    return Case(
        name=name, kind="json_schema", schema=entry["schema"], instances=instances, draft=draft
    )


def _is_test(test: Any) -> bool:
    return isinstance(test, dict) and "data" in test and isinstance(test.get("valid"), bool)


def _distinct(cases: list[Case]) -> list[Case]:
    """Number the second and later cases of one name."""
    seen: Counter[str] = Counter()
    result = []
    for case in cases:
        seen[case.name] += 1
        number = seen[case.name]
        name = case.name if number == 1 else f"{case.name} ({number})"
        result.append(Case(**{**_fields(case), "name": name}))
    return result


def _fields(case: Case) -> dict[str, Any]:
    return {field: getattr(case, field) for field in case.__struct_fields__}


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _text(entry: dict[str, Any], key: str) -> str:
    return str(entry.get(key, ""))


def _files(folder: Path, pattern: str) -> Iterator[Path]:
    if not folder.is_dir():
        raise InvalidRequest(f"there is no folder {folder}")
    paths = sorted(path for path in folder.glob(pattern) if path.is_file())
    if not paths:
        raise InvalidRequest(f"there are no {pattern} files in {folder}")
    return iter(paths)


def _read(path: Path) -> Any:
    try:
        text = path.read_text(encoding="utf-8")
        return tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"the file can't be read: {error}", where=str(path)) from None
