"""A run's rates as bar charts, a row of them for each model."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from stolon.benchmarks.targets import rate
from stolon.benchmarks.workload import RATES
from stolon.errors import InvalidRequest

_TITLES = {"prefill": "prefill", "shared": "16 that share 3,500 of 4,096"}
_COLOURS = ("#2a7", "#999", "#7a9cc6", "#c9a66b")


def check_plot() -> None:
    """Raise InvalidRequest where there is no matplotlib."""
    if importlib.util.find_spec("matplotlib") is None:
        raise InvalidRequest("--plot needs matplotlib", param="plot", hint="pip install matplotlib")


def plot(models: list[dict[str, Any]], path: Path) -> None:
    """Write the chart of some results to `path`; its suffix says the format. Needs matplotlib."""
    check_plot()
    matplotlib: Any = importlib.import_module("matplotlib")
    matplotlib.use("Agg")
    pyplot: Any = importlib.import_module("matplotlib.pyplot")
    figure, grid = pyplot.subplots(
        len(models), len(RATES), figsize=(3.2 * len(RATES), 3.2 * len(models) + 0.5), squeeze=False
    )
    for axes, results in zip(grid, models, strict=True):
        for axis, label in zip(axes, RATES, strict=True):
            _bars(axis, results["engines"], label)
        axes[0].set_ylabel(f"{results['model']}\ntokens per second", fontsize=8)
    figure.suptitle(models[0]["machine"]["cpu"])
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def _bars(axis: Any, engines: dict[str, dict[str, Any]], label: str) -> None:
    rates = {name: found for name, e in engines.items() if (found := rate(e, label)) is not None}
    colours = dict(zip(engines, _COLOURS, strict=False))
    bars = axis.bar(list(rates), list(rates.values()), color=[colours[name] for name in rates])
    axis.bar_label(bars, fmt="%.0f", fontsize=8)
    axis.set_title(_TITLES.get(label, label.replace("_", ", ") + " at once"), fontsize=9)
    axis.tick_params(axis="x", labelrotation=20, labelsize=8)
    axis.margins(y=0.15)
