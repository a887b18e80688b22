"""The check as a whole: read the suite, run it guarded, report, compare with the ratchet."""

from __future__ import annotations

import importlib
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tqdm import tqdm

from stolon.constrained.check import ratchet
from stolon.constrained.check.cases import Case, Outcome, Setup
from stolon.constrained.check.guard import Guard
from stolon.constrained.check.suites import (
    jsts_cases,
    maskbench_cases,
    regex_cases,
    remote_documents,
)
from stolon.constrained.check.summary import Result, as_data, as_text
from stolon.errors import InvalidRequest

__all__ = ["Request", "check"]

REMOTES_PREFIX = "http://localhost:1234/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What the command line asks for.

    Attributes:
        worker: command that starts a process which runs `serve`.
        draft: how schemas without ``$schema`` are read; for jsts also which tests are run.
        optional: run the optional tests of the draft instead of the required ones.
        remotes: a folder of documents that schemas may refer to, at `remotes_prefix`.
        limit_ms: time for one case with all its instances.
        listed: length of the lists in the report.
    """

    suite: Literal["maskbench", "jsts", "regex"]
    folder: Path
    worker: list[str]
    draft: str | None = None
    optional: bool = False
    remotes: Path | None = None
    remotes_prefix: str = REMOTES_PREFIX
    masks: bool = False
    walks: int = 0
    whitespace: Literal["compact", "pep"] = "pep"
    limit_ms: int = 10_000
    ratchet: Path | None = None
    update: bool = False
    json_out: Path | None = None
    match: str = ""
    listed: int = 20


def check(request: Request) -> int:
    """Run a suite and print the report. 1 if anything is unsound or worse than the ratchet says.

    Raises:
        InvalidRequest: a path or a file is not what it should be.
        KeyboardInterrupt: after the report on what was done until then.
    """
    if request.update and request.ratchet is None:
        raise InvalidRequest("--update needs --ratchet FILE")
    known = None
    if request.ratchet is not None and (request.ratchet.exists() or not request.update):
        known = ratchet.load(request.ratchet)
    for out in (request.json_out, request.ratchet if request.update else None):
        if out is not None and not out.absolute().parent.is_dir():
            raise InvalidRequest(f"there is no folder {out.absolute().parent}")
        if out is not None and out.is_dir():
            raise InvalidRequest(f"{out} is a folder, not a file")
    cases = [case for case in _cases(request) if request.match in case.name]
    if not cases:
        raise InvalidRequest(f"no case has {request.match!r} in its name")
    setup = Setup(
        masks=request.masks,
        walks=request.walks,
        whitespace=request.whitespace,
        documents=_documents(request),
    )
    results: list[Result] = []
    interrupted = False
    try:
        with Guard(request.worker, setup, seconds=request.limit_ms / 1e3) as guard:
            for case in tqdm(cases, unit="case", disable=None, leave=False, dynamic_ncols=True):
                results.append(Result(case, guard.run(case)))
    except KeyboardInterrupt:
        interrupted = True
    data = as_data(results)
    if request.json_out is not None:
        text = json.dumps(data, ensure_ascii=False, indent=1) + "\n"
        request.json_out.write_text(text, encoding="utf-8")
    print(f"{request.suite} {request.folder}: {len(results):,} of {len(cases):,} cases")
    print(as_text(data, listed=request.listed))
    if interrupted:
        print("interrupted: the rest was not checked", file=sys.stderr)
        raise KeyboardInterrupt
    worse = _hold(request, known, results)
    return 1 if worse or "unsound" in data["outcomes"] else 0


def _cases(request: Request) -> list[Case]:
    if request.suite == "maskbench":
        return maskbench_cases(request.folder, draft=request.draft, whitespace=request.whitespace)
    if request.suite == "regex":
        return regex_cases(request.folder)
    return jsts_cases(
        request.folder,
        draft=request.draft or "2020-12",
        optional=request.optional,
        whitespace=request.whitespace,
    )


def _documents(request: Request) -> dict[str, Any]:
    """The documents given, and for the test suite its own and the metaschemas if they are there."""
    folder = request.remotes
    if folder is None and request.suite == "jsts" and (request.folder / "remotes").is_dir():
        folder = request.folder / "remotes"
    if folder is None:
        return {}
    return _metaschemas() | remote_documents(folder, request.remotes_prefix)


def _metaschemas() -> dict[str, Any]:
    try:
        registry: Any = importlib.import_module("jsonschema_specifications").REGISTRY
    except ImportError:
        return {}
    return {address: registry[address].contents for address in registry}


def _hold(request: Request, known: dict[str, Outcome] | None, results: list[Result]) -> bool:
    """Compare with the ratchet, or move it. True if a case is worse than it says."""
    now = {result.case.name: result.outcome for result in results}
    if request.ratchet is None:
        return False
    changes = ratchet.compare(known or {}, now)
    for change in changes:
        mark = "worse" if change.worse else "ratchet"
        print(f"{mark}: {change.name}: was {change.before}, is {change.now}")
    if request.update:
        ratchet.save(request.ratchet, (known or {}) | now if request.match else now)
        return False
    return any(change.worse for change in changes)
