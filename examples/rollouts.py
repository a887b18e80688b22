"""Rollouts for reinforcement learning: groups of samples with exact log-probs and rewards.

    python examples/rollouts.py rollouts.jsonl --groups 4 --samples 8

The task: continue a counting sequence. The reward is the share of the next numbers that are right.
Advantages are the rewards relative to their group (GRPO, arXiv 2402.03300). The same seed, model
and machine give the same rollouts, since nothing else runs in this engine. `--dtype float32` is several
times slower and also keeps a sample the same in other company, but for tokens that tie to about 1e-5.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
from pathlib import Path

import stolon as sl
from stolon.errors import InvalidRequest


def prompt(start: int) -> str:
    return "Counting: " + ", ".join(str(start + i) for i in range(4)) + ","


def reward(start: int, text: str) -> float:
    """Share of the first four numbers of the text that continue the sequence."""
    found = [int(number) for number in re.findall(r"\d{1,9}", text)[:4]]
    expected = range(start + 4, start + 8)
    return sum(a == b for a, b in zip(found, expected, strict=False)) / len(expected)


def main() -> int:
    parser = argparse.ArgumentParser(prog="rollouts", description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="JSONL file, one line per sample")
    parser.add_argument("--groups", type=int, default=4, help="prompts")
    parser.add_argument("--samples", type=int, default=8, help="samples of each prompt")
    parser.add_argument("--max-tokens", type=int, default=16)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtype", default="auto", choices=("auto", "bfloat16", "float32"))
    args = parser.parse_args()
    for option, value, low, high in (
        ("--groups", args.groups, 1, 10_000),
        ("--samples", args.samples, 1, 128),
        ("--max-tokens", args.max_tokens, 1, 100_000),
        ("--temperature", args.temperature, 0, 100),
        ("--seed", args.seed, 0, 2**62),
    ):
        if not low <= value <= high:
            raise InvalidRequest(f"{option} must be between {low} and {high}, not {value}")
    if not args.out.parent.is_dir():
        raise InvalidRequest(f"{args.out.parent} is not a folder", hint="create it first")

    rewards: list[list[float]] = []
    with (
        args.out.open("a", encoding="utf-8") as out,
        sl.Engine(args.model, dtype=args.dtype) as engine,
    ):
        starts = [3 + 10 * group for group in range(args.groups)]
        for group, start in enumerate(starts):
            ids = engine.tokenizer.encode(prompt(start))
            # All samples share the prompt: it is computed once.
            samples = engine.generate(
                input_ids=ids,
                n=args.samples,
                seed=args.seed + group,
                max_tokens=args.max_tokens,
                temperature=args.temperature,
                return_logprob=True,
                # The distribution that was sampled from is what an off-policy correction needs.
                logprob_mode="tempered",
            )
            samples = samples if isinstance(samples, list) else [samples]
            found = [reward(start, sample.text) for sample in samples]
            rewards.append(found)
            if group == 0 and args.out.is_file():
                out.truncate(0)  # an older output stays until there is something in its place
            mean, spread = statistics.fmean(found), statistics.pstdev(found)
            for sample, value in zip(samples, found, strict=True):
                line = {
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
                out.write(json.dumps(line) + "\n")
                out.flush()
            best = samples[max(range(len(found)), key=found.__getitem__)]
            print(f"group {group}: mean {mean:.2f}, best {max(found):.2f}: {best.text!r}")
        stats = engine.stats()
    every = [value for group in rewards for value in group]
    best_of_n = statistics.fmean(max(group) for group in rewards)
    print(f"mean reward {statistics.fmean(every):.3f}, best of {args.samples}: {best_of_n:.3f}")
    print(f"{stats.sampled_tokens} tokens sampled, {stats.cached_tokens} prompt tokens shared")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (sl.StolonError, OSError) as error:
        print(f"rollouts: error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
