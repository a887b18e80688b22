"""Where the time went: the trace of a run as a tree, as a timeline for Perfetto, and as spans.

python examples/timeline.py run.json      # open it at https://ui.perfetto.dev
"""

from __future__ import annotations

import argparse
from pathlib import Path

from _frame import frame

import stolon as sl

SIDES = ("a farmer", "a doctor", "a poet")


@sl.function
def debate(s: sl.ProgramState, topic: str) -> None:
    s += sl.user(f"Let us talk about {topic}. Name one fact.")
    s += sl.assistant(sl.gen("fact", max_tokens=24, stop="\n"))
    speakers = s.fork(len(SIDES))
    speakers += [sl.user(f"What would {side} say?") for side in SIDES]
    speakers += sl.assistant(sl.gen("speech", max_tokens=32, stop="\n"))
    speakers.join()
    s += sl.user("Who would you agree with?") + sl.assistant(sl.select("winner", SIDES))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, nargs="?", default=Path("run.json"))
    parser.add_argument("--topic", default="rain")
    parser.add_argument(
        "--format", choices=("chrome", "otel", "stolon"), default="chrome", help="of the file"
    )
    args = parser.parse_args()
    trace = debate.run(args.topic, seed=1).trace
    trace.save(args.out, format=args.format)
    print(trace)
    slowest = max(trace.calls, key=lambda call: call.seconds or 0)
    print(f"\nslowest: {slowest.name} of {slowest.where}, {slowest.seconds:.2f} s")
    price = trace.cost(sl.Prices(input=0.5, output=1.5))  # for a million tokens
    print(f"wrote {args.out}; at a provider's prices this run might cost ${price:.6f}")


if __name__ == "__main__":
    with frame():
        main()
