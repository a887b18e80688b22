"""`stolon bench`: measure this machine."""

from __future__ import annotations

import argparse
import sys

from stolon.commands.options import add_model, positive

NAME = "bench"
HELP = "measure speed, memory and overhead on this machine, with llama.cpp as a peer if wanted"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument("--peer", choices=("llama.cpp",), help="measure this engine too")
    parser.add_argument(
        "--peer-python",
        default=sys.executable,
        metavar="PATH",
        help="a Python that has llama-cpp-python (default: this one)",
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

    from stolon.benchmarks import Plan, judge, measure, table
    from stolon.benchmarks.measure import usable_cores
    from stolon.errors import InvalidRequest
    from stolon.srt.loaders import resolve

    for option, out in (("--json", args.json), ("--plot", args.plot)):
        # Before minutes of measuring, not after them.
        if out is not None and not Path(out).parent.is_dir():
            raise InvalidRequest(f"{option}: {Path(out).parent} is not a folder")
    make = Plan.quick if args.quick else Plan
    plan = make(
        model=resolve(args.model),
        peer=args.peer,
        peer_python=args.peer_python,
        threads=args.threads or usable_cores(),
    )
    results = measure(plan, say=_say)
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr)
    print(table(results))
    verdicts = judge(results)
    unmeasured = [verdict.target for verdict in verdicts if verdict.found is None]
    if unmeasured and args.peer is None:
        # Every other target is measured in every run.
        names = ", ".join(target.name for target in unmeasured)
        print(f"\nnot measured: {names}; they compare with a peer (--peer llama.cpp)")
    if args.json:
        Path(args.json).write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    if args.plot:
        from stolon.benchmarks.plot import plot

        plot(results, Path(args.plot))
    missed = [verdict for verdict in verdicts if verdict.word == "FAIL"]
    return 1 if args.check and missed else 0


def _say(text: str) -> None:
    """Progress on stderr: one line that is overwritten on a terminal, else a line each."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
    else:
        print(text, file=sys.stderr, flush=True)
