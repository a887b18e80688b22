"""A run's rates as a bar chart."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from stolon.benchmarks.workload import BATCHES
from stolon.errors import InvalidRequest


def plot(results: dict[str, Any], path: Path) -> None:
    """Write the chart to `path`; its suffix says the format. Needs matplotlib."""
    try:
        matplotlib: Any = importlib.import_module("matplotlib")
        matplotlib.use("Agg")
        pyplot: Any = importlib.import_module("matplotlib.pyplot")
    except ImportError as error:
        raise InvalidRequest(
            "--plot needs matplotlib", param="plot", hint="pip install 'stolon[bench]'"
        ) from error
    labels = ["prefill", *(f"decode_{n}" for n in BATCHES)]
    engines = results["engines"]
    figure, axes = pyplot.subplots(1, len(labels), figsize=(3 * len(labels), 3.5))
    for axis, label in zip(axes, labels, strict=True):
        rates = [engine[label]["tokens_per_second"] for engine in engines.values()]
        bars = axis.bar(list(engines), rates, color=["#2a7", "#999"][: len(rates)])
        axis.bar_label(bars, fmt="%.0f")
        axis.set_title(label.replace("_", ", batch "))
        axis.margins(y=0.15)
    axes[0].set_ylabel("tokens per second")
    figure.suptitle(f"{results['model']} on {results['machine']['cpu']}")
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
