"""The same program in this process and on a server: one argument, and the same text.

python examples/remote.py                          # starts a server and stops it
python examples/remote.py http://127.0.0.1:8000    # a `stolon serve`, or another project's server
"""

from __future__ import annotations

import argparse
import contextlib

from _frame import frame

import stolon as sl


@sl.function
def limerick(s: sl.ProgramState, place: str) -> None:
    s += f"There was an old man from {place}," + sl.gen("second", max_tokens=16, stop="\n")
    lines = s.fork(2)
    lines += "\nWho" + sl.gen("third", max_tokens=12, stop="\n", temperature=0.9)
    s["lines"] = [branch["third"] for branch in lines]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url", nargs="?", help="of a server; without it one is started")
    parser.add_argument("--api-key")
    parser.add_argument("--place", default="Peru")
    args = parser.parse_args()
    with contextlib.ExitStack() as stack:
        if args.url is None:
            server = stack.enter_context(sl.Runtime())
        else:
            server = stack.enter_context(sl.connect(args.url, api_key=args.api_key))
        there = limerick.run(args.place, backend=server, seed=7)
        here = limerick.run(args.place, seed=7)
        for name, state in (("server", there), ("here", here)):
            print(f"{name:<7} {state['second'].strip()!r}, then {state['lines']}")
        print(f"the same text: {'yes' if there['lines'] == here['lines'] else 'no'}")


if __name__ == "__main__":
    with frame():
        main()
