"""`stolon demo`: one program that shows forks, a schema and a choice, with its trace."""

from __future__ import annotations

import argparse
import sys

from stolon.commands.options import add_model, seed

NAME = "demo"
HELP = "run a small program on the default model and show what the runtime saved"

NOTE = "Maria Lopez, 34, is a nurse in Lisbon. She cycles to work and has two sons."
ANGLES = ("work", "family", "health")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument("--seed", type=seed, default=1, help="seed of the run (default: 1)")
    parser.add_argument("--note", default=NOTE, help="text about a person")


def run(args: argparse.Namespace) -> int:
    import time

    print(f"loading {args.model} ...", file=sys.stderr, flush=True)
    start = time.perf_counter()

    from pydantic import BaseModel, Field

    import stolon as sl

    class Person(BaseModel):
        name: str = Field(max_length=40)
        age: int = Field(ge=0, le=120)
        city: str = Field(max_length=30)

    @sl.function
    def profile(s: sl.ProgramState, note: str) -> None:
        s += sl.user("Extract the person as JSON.\n" + note)
        s += sl.assistant(sl.gen("person", schema=Person, max_tokens=80, temperature=0))
        views = s.fork(len(ANGLES))
        for angle, view in zip(ANGLES, views, strict=True):
            view += sl.user(f"One short sentence on {angle}.")
            view += sl.assistant(sl.gen("line", max_tokens=32, stop=["\n", ". "], temperature=0.7))
        s += sl.user("Is this person retired? Answer yes or no.")
        s += sl.assistant(sl.select("retired", ["yes", "no"]))
        s["lines"] = [view["line"] for view in views]

    with sl.Engine(args.model) as engine:
        loaded = time.perf_counter() - start
        state = profile.run(note=args.note, backend=engine, seed=args.seed)
        person = state.value("person")
        print(f"note      {args.note}")
        print(f"person    name={person.name!r} age={person.age} city={person.city!r}")
        for angle, line in zip(ANGLES, state["lines"], strict=True):
            print(f"{angle:<9} {line.strip()}")
        scores = state.scores("retired")
        likely = ", ".join(f"{choice} {scores[choice]:.2f}" for choice in scores)
        print(f"retired   {state['retired']}  (log-probs: {likely})")
        print()
        print(state.trace)
        print(f"model loaded in {loaded:.1f} s; seed {args.seed}")
    return 0
