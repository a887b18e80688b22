"""Rollouts for reinforcement learning: groups of samples with exact log-probs and rewards.

    python examples/rollouts.py rollouts.jsonl --groups 4 --samples 8

The task: continue a counting sequence. The reward is the share of the next numbers that are right.
Advantages are the rewards relative to their group (GRPO, arXiv 2402.03300). The same seed, model and
kind of machine give the same rollouts, to the last bit of the log-probs.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
from pathlib import Path
from typing import Any

from _frame import frame

import stolon as sl
from stolon.errors import InvalidRequest


def reward(start: int, text: str) -> float:
    """Share of the first four numbers of the text that continue the sequence."""
    found = [int(number) for number in re.findall(r"\d{1,9}", text)[:4]]
    expected = range(start + 4, start + 8)
    return sum(a == b for a, b in zip(found, expected, strict=False)) / len(expected)


def rollouts(engine: sl.Engine, group: int, args: argparse.Namespace) -> list[dict[str, Any]]:
    """One record for each sample of a group. All samples share the prompt: it is computed once."""
    start = 3 + 10 * group
    ids = engine.tokenizer.encode("Counting: " + ", ".join(str(start + i) for i in range(4)) + ",")
    made = engine.generate(
        input_ids=ids,
        n=args.samples,
        seed=args.seed + group,
        max_tokens=args.max_tokens,
        temperature=args.temperature,
        return_logprob=True,
        # The distribution that was sampled from is what an off-policy correction needs.
        logprob_mode="tempered",
    )
    samples = made if isinstance(made, list) else [made]
    rewards = [reward(start, sample.text) for sample in samples]
    mean, spread = statistics.fmean(rewards), statistics.pstdev(rewards)
    return [
        {
            "group": group,
            "prompt_ids": ids,
            "token_ids": sample.token_ids,
            "logprobs": [entry.logprob for entry in sample.logprobs],
            "reward": value,
            "advantage": (value - mean) / (spread + 1e-6),
            "finish": sample.finish.kind,
            "weights_version": sample.weights_version,
            "text": sample.text,
        }
        for sample, value in zip(samples, rewards, strict=True)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="rollouts", description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="JSONL file, one line per sample")
    parser.add_argument("--groups", type=int, default=4, help="prompts")
    parser.add_argument("--samples", type=int, default=8, help="samples of each prompt")
    parser.add_argument("--max-tokens", type=int, default=16)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--model", default="smollm2-135m")
    args = parser.parse_args()
    if args.groups < 1:
        raise InvalidRequest(f"--groups must be at least 1, not {args.groups}")
    if not args.out.parent.is_dir():
        raise InvalidRequest(f"{args.out.parent} is not a folder", hint="create it first")
    best, every = [], []
    with sl.Engine(args.model) as engine:
        for group in range(args.groups):
            records = rollouts(engine, group, args)
            # An older output stays until there is something in its place.
            with args.out.open("a" if group else "w", encoding="utf-8") as out:
                out.writelines(json.dumps(record) + "\n" for record in records)
            top = max(records, key=lambda record: record["reward"])
            best.append(top["reward"])
            every += [record["reward"] for record in records]
            print(f"group {group}: best {top['reward']:.2f}: {top['text']!r}")
        stats = engine.stats()
    mean = statistics.fmean(every)
    print(f"mean reward {mean:.3f}, best of {args.samples}: {statistics.fmean(best):.3f}")
    print(f"{stats.sampled_tokens} tokens sampled, {stats.cached_tokens} prompt tokens shared")


if __name__ == "__main__":
    with frame():
        main()
