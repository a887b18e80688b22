"""`stolon bench`: measure this machine."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any

from stolon.commands.options import DEFAULT_MODEL, positive

# The plan, and what measures it, prints its results and judges them.
_Kind = tuple[type[Any], Callable[..., Any], Callable[..., str], Callable[..., list[Any]]]

NAME = "bench"
HELP = "measure speed, memory and quality on this machine, beside other engines if wanted"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what",
        nargs="?",
        choices=("engine", "structured", "programs", "language"),
        default="engine",
        help="engine: speed, memory, quality (default); structured: extraction under a JSON schema, what "
        "constraints cost, drafts from the prompt; programs: eight programs of many calls; language: what "
        "programs cost beside the engine",
    )
    parser.add_argument(
        "--model",
        action="append",
        metavar="MODEL",
        help="a name from `stolon models`, a .gguf file or a folder; may be given more than once "
        f"(default: {DEFAULT_MODEL})",
    )
    parser.add_argument(
        "--peers",
        "--peer",
        action="append",
        default=[],
        metavar="NAME,...",
        help="measure these engines too: llama.cpp, openvino, vllm",
    )
    parser.add_argument(
        "--peer-python",
        action="append",
        default=[],
        metavar="NAME=PATH",
        help="a Python that has the peer installed (default: this one); PATH alone is for all",
    )
    parser.add_argument("--threads", type=positive, metavar="N", help="default: physical cores")
    parser.add_argument("--quick", action="store_true", help="fewer tokens, measured once")
    parser.add_argument("--json", metavar="OUT", help="write the results as JSON")
    parser.add_argument("--plot", metavar="OUT", help="write a chart (needs matplotlib)")
    parser.add_argument(
        "--check", action="store_true", help="exit with 1 if a target that was measured is missed"
    )


def run(args: argparse.Namespace) -> int:
    import json
    from pathlib import Path

    from stolon.benchmarks import (
        LanguagePlan,
        Plan,
        ProgramsPlan,
        judge,
        judge_language,
        judge_programs,
        judge_structured,
        language_table,
        measure,
        measure_language,
        measure_programs,
        measure_structured,
        programs_table,
        structured_table,
        table,
    )
    from stolon.benchmarks.machine import usable_cores
    from stolon.benchmarks.peers import check_peers
    from stolon.benchmarks.plot import check_plot, plot
    from stolon.errors import InvalidRequest
    from stolon.srt.loaders import check_folder, open_model, resolve

    for option, out in (("--json", args.json), ("--plot", args.plot)):
        # Before minutes of measuring, not after them.
        if out is not None and not Path(out).parent.is_dir():
            raise InvalidRequest(f"{option}: {Path(out).parent} is not a folder")
        if out is not None and Path(out).is_dir():
            raise InvalidRequest(f"{option}: {out} is a folder, not a file")
    kinds: dict[str, _Kind] = {
        "engine": (Plan, measure, table, judge),
        "structured": (Plan, measure_structured, structured_table, judge_structured),
        "programs": (ProgramsPlan, measure_programs, programs_table, judge_programs),
        "language": (LanguagePlan, measure_language, language_table, judge_language),
    }
    plan_type, measured, tabled, judged = kinds[args.what]
    if args.plot:
        if args.what != "engine":
            raise InvalidRequest("--plot draws the engine benchmark only")
        check_plot()
    peers = tuple(dict.fromkeys(name for text in args.peers for name in text.split(",") if name))
    check_peers(peers)
    pythons = _pythons(args.peer_python, peers)
    models = [resolve(model) for model in args.model or [DEFAULT_MODEL]]
    for path in models:  # of a process that can't load one, only that is known
        check_folder(path)
        open_model(path).close()
    make = plan_type.quick if args.quick else plan_type
    done: list[dict[str, Any]] = []
    for model in models:
        plan = make(
            model=model, peers=peers, pythons=pythons, threads=args.threads or usable_cores()
        )
        results = measured(plan, say=_say)
        if sys.stderr.isatty():
            print("\r\x1b[K", end="", file=sys.stderr)
        print(("\n\n" if done else "") + tabled(results), flush=True)
        done.append(results)
        if args.json:
            # After each model, so that an interruption loses one.
            text = json.dumps({"machine": results["machine"], "models": done}, indent=2)
            Path(args.json).write_text(text + "\n", encoding="utf-8")
    verdicts = [verdict for results in done for verdict in judged(results)]
    unmeasured = dict.fromkeys(v.target.name for v in verdicts if v.found is None)
    if unmeasured and not peers:
        # Every other target is measured in every run.
        names = ", ".join(unmeasured)
        print(f"\nnot measured: {names}; they compare with peers (--peers llama.cpp,openvino,vllm)")
    if args.plot:
        plot(done, Path(args.plot))
    missed = [verdict for verdict in verdicts if verdict.word == "FAIL"]
    return 1 if args.check and missed else 0


def _pythons(options: list[str], peers: tuple[str, ...]) -> dict[str, str]:
    """The Python of each peer from ``NAME=PATH`` and ``PATH``."""
    import shutil

    from stolon.benchmarks.peers import PEERS, check_peers
    from stolon.errors import InvalidRequest

    named: dict[str, str] = {}
    for option in options:
        name, equals, path = option.partition("=")
        if equals and (name in PEERS or "/" not in name):
            check_peers((name,))
            named[name] = path
        else:
            named |= {peer: option for peer in peers if peer not in named}
    for python in named.values():
        if shutil.which(python) is None:
            raise InvalidRequest(f"--peer-python: there is no program {python!r}")
    return named


def _say(text: str) -> None:
    """Progress on stderr: one line that is overwritten on a terminal, else a line each."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
    else:
        print(text, file=sys.stderr, flush=True)
