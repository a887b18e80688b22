"""Many agents at once: asyncio, one task for each, and no thread for any of them.

    python examples/many_agents.py --agents 32

Each agent plays a number game: it guesses, is told whether to go higher or lower, and guesses again. Steps
of all of them share the engine's batches, and what they have said in common is computed once.
"""

from __future__ import annotations

import argparse
import asyncio
import time

from _frame import frame

import stolon as sl


@sl.function
async def player(s: sl.ProgramState, secret: int, tries: int) -> int | None:
    """The number of guesses that it took."""
    s += "A game. The secret number is between 1 and 30.\n"
    low, high = 1, 30
    for attempt in range(1, tries + 1):
        s += f"It is at least {low} and at most {high}. Guess: "
        s += sl.gen("guess", regex="|".join(map(str, range(low, high + 1)))) + "\n"
        guess = int(await s.aget("guess"))
        if guess == secret:
            return attempt
        if guess < secret:
            low = guess + 1
        else:
            high = guess - 1
    return None


async def play(agents: int, tries: int) -> list[sl.ProgramState]:
    # One that fails cancels the others, and what they have asked for is aborted.
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(player.arun(secret=1 + i * 7 % 30, tries=tries, seed=i))
            for i in range(agents)
        ]
    return [task.result() for task in tasks]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--agents", type=int, default=16)
    parser.add_argument("--tries", type=int, default=8)
    args = parser.parse_args()
    start = time.perf_counter()
    states = asyncio.run(play(args.agents, args.tries))
    seconds = time.perf_counter() - start
    for i, state in enumerate(states):
        took = f"after {state.ret_value}" if state.ret_value else f"not in {args.tries}"
        print(f"agent {i:>3}  last guess {state['guess']:>2}  {took}")
    calls = sum(len(state.trace.calls) for state in states)
    print(f"\n{args.agents} agents, {calls} calls, {seconds:.1f} s")


if __name__ == "__main__":
    with frame():
        main()
