"""The constrained benchmark's results as a table."""

from __future__ import annotations

from typing import Any

from stolon.benchmarks.targets import Target, Verdict

__all__ = ["STRUCTURED_TARGETS", "judge_structured", "structured_table"]

STRUCTURED_TARGETS = (
    Target(name="extraction", sense="at least", value=3.0, against="best peer"),
    Target(name="json_forced", sense="at least", value=1.15, against="free text"),
    Target(name="json_unforced", sense="at least", value=0.98, against="free text"),
    Target(name="drafts_copying", sense="at least", value=1.5, against="no drafts"),
    Target(name="drafts_writing", sense="at least", value=0.97, against="no drafts"),
)
_NONE = "–"


def judge_structured(results: dict[str, Any]) -> list[Verdict]:
    """Every target with what `measure_structured` found."""
    engines = results["engines"]
    ours = engines["stolon"]
    peers = [
        engine["extract"]["documents_per_second"]
        for name, engine in engines.items()
        if name != "stolon" and "error" not in engine["extract"]
    ]
    found = {
        "json_forced": ours["constrained"]["inject"] / ours["constrained"]["free"],
        "json_unforced": ours["constrained"]["off"] / ours["constrained"]["free"],
    }
    if peers:
        found["extraction"] = ours["extract"]["documents_per_second"] / max(peers)
    for name in ("drafts_copying", "drafts_writing"):
        found[name] = ours[name]["auto"] / ours[name]["off"]
    return [Verdict(target, found.get(target.name)) for target in STRUCTURED_TARGETS]


def structured_table(results: dict[str, Any]) -> str:
    """The results of one model as Markdown."""
    machine, engines = results["machine"], results["engines"]
    lines = [
        f"{results['model']} on {machine['cpu']}, {machine['cores']} cores; "
        f"{results['documents']} documents, best of {results['repeats']}",
        "",
        *(f"{name}: {engine['version']}; {_settings(engine)}" for name, engine in engines.items()),
        *(f"{name}: not measured: {reason}" for name, reason in results["missing"].items()),
        "",
        "| engine | documents/s | valid | right | this engine against it |",
        "|---|---|---|---|---|",
    ]
    ours = engines["stolon"]["extract"]["documents_per_second"]
    for name, engine in engines.items():
        row = engine["extract"]
        if "error" in row:
            lines.append(f"| {name} | {row['error']} | {_NONE} | {_NONE} | {_NONE} |")
            continue
        rate = row["documents_per_second"]
        ratio = _NONE if name == "stolon" else f"{ours / rate:.2f}×"
        lines.append(f"| {name} | {rate:.1f} | {row['valid']} | {row['right']} | {ratio} |")
    own = engines["stolon"]
    lines += ["", "| this engine, tokens/s | | |", "|---|---|---|"]
    for mode, title in (
        ("free", "free text, 16 at once"),
        ("inject", "the same as JSON, forced runs appended"),
        ("verify", "the same, forced runs as drafts"),
        ("off", "the same, nothing forced"),
    ):
        rate = own["constrained"][mode]
        lines.append(f"| {title} | {rate:.0f} | {rate / own['constrained']['free']:.2f}× |")
    for name, title in (
        ("copying", "copying, one sequence"),
        ("writing", "other text, one sequence"),
    ):
        row = own[f"drafts_{name}"]
        lines.append(f"| {title}, no drafts | {row['off']:.0f} | |")
        lines.append(
            f"| {title}, drafts from the prompt | {row['auto']:.0f} | {row['auto'] / row['off']:.2f}× |"
        )
    lines += ["", "| target | | found | |", "|---|---|---|---|"]
    for verdict in judge_structured(results):
        target = verdict.target
        found = "" if verdict.found is None else f"{verdict.found:.3g}{target.unit}"
        lines.append(
            f"| {target.name} | {target.sense} {target.value:g}{target.unit} of {target.against} "
            f"| {found} | {verdict.word} |"
        )
    return "\n".join(lines)


def _settings(engine: dict[str, Any]) -> str:
    settings = engine["settings"] | engine["extract"].get("settings", {})
    return ", ".join(f"{key} {value}" for key, value in settings.items())
