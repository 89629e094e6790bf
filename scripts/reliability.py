"""Pages made of figures: what soak, walks, simulation and fuzzer did, read from their results.

`docs/results/` holds a file per run, written by its `--results`; `make reliability` renews them.
`check_docs.py` puts the tables into `docs/reliability.md` and `docs/guarantees.md`.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent.parent / "docs" / "results"
CALLS = ("recover", "commit", "settle", "roll back", "between batches")


def point_table() -> str:
    """Return where writers were killed and paused, how often, and what their tables held then.

    Walks are tests that take every statement in turn, worlds are those of the soak.
    """
    counts: dict[tuple[str, str, str], Counter[str]] = {}
    walks = [("walks", one) for one in _read("walks").values() if isinstance(one, dict)]
    for source, found in [*walks, ("soak", _read("soak"))]:
        for outcome in ("points", "different"):
            for point, number in found.get(outcome, {}).items():
                kind, call, how, statement = point.split("|")
                row = counts.setdefault((kind, call, statement), Counter())
                row[f"{how} {source}"] += number
                row[outcome] += number
    rows = [
        "| target | call | before | killed: walks | worlds | paused: walks | worlds | as the "
        "oracle says |",
        "|---|---|---|--:|--:|--:|--:|--:|",
    ]
    for key, row in sorted(
        counts.items(), key=lambda one: (one[0][0], CALLS.index(one[0][1]), one[0][2])
    ):
        kind, call, statement = key
        if kind == "memory":
            continue
        numbers = [row[f"{how} {one}"] for how in ("killed", "paused") for one in ("walks", "soak")]
        total = row["points"] + row["different"]
        rows.append(
            f"| {kind} | {call} | `{statement}` | {' | '.join(map(str, numbers))} "
            f"| {row['points']} of {total} |"
        )
    return "\n".join(rows)


def cell_table() -> str:
    """Return how often worlds had a feature of a target meet a fault."""
    found = _read("soak")
    counts: dict[tuple[str, str], Counter[str]] = {}
    faults: list[str] = found["columns"]
    for row in found["rows"]:
        counts[tuple(row)] = Counter()
    for cell, number in found["cells"].items():
        kind, feature, fault = cell.split("|")
        counts.setdefault((kind, feature), Counter())[fault] += number
    without = set(found["without"])
    offered = [f"{kind}|{one}|{fault}" for kind, one in found["rows"] for fault in faults]
    empty = sum(1 for one in offered if one not in without and not found["cells"].get(one))
    of_lakes = sum(found["cells"].get(f"{kind}|maintained from outside|fork", 0)
                   for kind in ("Delta", "Delta on S3", "Iceberg", "Iceberg on S3"))  # fmt: skip
    rows = [
        f"{found['runs'][-1]['date']}, {found['worlds']:,} worlds. Of {len(offered):,} cells "
        f"{len(without):,} cannot meet, and {empty:,} were met by no world. In {of_lakes:,} "
        "streams into Iceberg or Delta alone the chain forked, and another engine or `headwater "
        "maintain` maintained the tables.",
        "",
        f"| target | feature | {' | '.join(faults)} |",
        f"|---|---|{'--:|' * len(faults)}",
    ]
    for (kind, feature), row in sorted(counts.items(), key=lambda one: one[0][0]):
        numbers = ["—" if f"{kind}|{feature}|{one}" in without else str(row[one]) for one in faults]
        rows.append(f"| {kind} | {feature} | {' | '.join(numbers)} |")
    return "\n".join(rows)


def version_table() -> str:
    """Return what ran on which version of Spark and Python: tests that passed, by area."""
    found = _read("compat")
    ends = ["lowest", "newest"]
    bounds = {name: found.pop(name) for name in ends if name in found}
    sparks = {name: one for name, one in found.items() if not name.startswith("python")}
    pythons = {name: one for name, one in found.items() if name.startswith("python")}
    tables = (("pyspark", "Spark", sparks), ("python", "Python", pythons))
    return "\n\n".join(_versions(*one) for one in tables if one[2]) + _bounds(bounds)


def _bounds(found: dict[str, Any]) -> str:
    """Return what the lowest and the newest versions of all dependencies are, and what passed."""
    if not found:
        return ""
    head = " | ".join(found)
    said = {"commit": "commit", "date": "date", "python": "Python"}
    rows = [f"| | {head} |", f"|---|{'---|' * len(found)}"]
    rows += [_across(title, [one[key] for one in found.values()]) for key, title in said.items()]
    packages = dict.fromkeys(name for one in found.values() for name in one["packages"])
    rows += [
        _across(f"`{name}`", [one["packages"].get(name, "") for one in found.values()])
        for name in packages
    ]
    areas = dict.fromkeys(name for one in found.values() for name in one["areas"])
    rows += [
        _across(f"tests: {area}", [_passed(one["areas"].get(area, {})) for one in found.values()])
        for area in areas
    ]
    return "\n\n" + "\n".join(rows)


def _across(title: str, cells: list[str]) -> str:
    return f"| {title} | {' | '.join(cells)} |"


def _passed(counts: dict[str, int]) -> str:
    total = sum(counts.values()) - counts.get("skipped", 0)
    return f"{counts.get('passed', 0)} of {total}" if total else ""


def _versions(key: str, title: str, found: dict[str, Any]) -> str:
    areas = list(dict.fromkeys(name for one in found.values() for name in one["areas"]))
    rows = [f"| {title} | {' | '.join(areas)} | run on |", f"|---|{'--:|' * len(areas)}---|"]
    for _, one in sorted(found.items()):
        cells = [*(_passed(one["areas"].get(area, {})) for area in areas), one["date"]]
        rows.append(f"| {one[key]} | {' | '.join(cells)} |")
    return "\n".join(rows)


def figures() -> str:
    """Return what was survived, run by run."""
    return "\n\n".join([_soak(), _long(), _simulation(), _fuzz()])


def _soak() -> str:
    found = _read("soak")
    met = found["met"]
    kills = sum(number for name, number in met.items() if name.startswith("killed in"))
    pauses = sum(number for name, number in met.items() if name.startswith("paused in"))
    cuts = met["database's answer cut"] + met["statement cut on its way to a database"]
    mended = ", ".join(map(str, found["mended"]))
    again = f" Worlds that differed were played again once the cause was mended: {mended}."
    lines = [
        "## Whole-system worlds",
        "",
        f"{found['runs'][-1]['date']}, `make soak`: "
        f"{found['worlds']:,} worlds, {found['steps']:,} steps, {found['requests']:,} requests, "
        f"**{found['differences']} differences**.{again if mended else ''}",
        "",
        "| played on | commit | worlds | seeds |",
        "|---|---|--:|---|",
        *(f"| {one['date']} | `{one['commit']}` | {one['worlds']:,} | "
          f"{'about rare cells, ' if one['rare'] else ''}from {one['first']:,} on |"
          for one in found["runs"]),
        "",
        "| survived | times |",
        "|---|--:|",
        f"| kills at a statement | {kills:,} |",
        f"| pauses at a statement | {pauses:,} |",
        f"| database connections cut | {cuts:,} |",
        *(f"| {name} | {number:,} |" for name, number in met.items()
          if not name.startswith(("killed in ", "paused in "))),
        f"| faulty answers of portals | {sum(found['faults'].values()):,} |",
    ]  # fmt: skip
    return "\n".join(lines)


def _long() -> str:
    found = _read("long")
    processes = found["processes"]
    lines = [
        "## Long soak",
        "",
        f"{found['date']}, `make soak LONG=1 MINUTES={found['seconds'] // 60}`: "
        f"{found['forks']:,} forks, up to {found['deepest']} blocks deep, on {found['blocks']:,} "
        f"blocks. At the end every table equalled the chain. {found.get('note', '')}".rstrip(),
        "",
        "![Memory, handles and rows over time](results/long.png)",
        "",
        "| process | killed | stopped for 40 s | slow target, s |",
        "|---|--:|--:|--:|",
        *(f"| {kind} | {one['kills']} | {one['stops']} | {one['slow_seconds']} |"
          for kind, one in processes.items()),
        "",
        "| process | figure | mean | growth in the second half | plateau |",
        "|---|---|--:|--:|---|",
        *(f"| {one['process']} | {one['figure']} | {one['mean']} | {one['growth']:+} | "
          f"{'yes' if one['none'] else 'no'} |" for one in found["plateaus"]),
    ]  # fmt: skip
    return "\n".join(lines)


def _simulation() -> str:
    found = _read("sim")
    return (
        f"## Scenarios of client, core and state\n\n{found['date']}, `make sim`: "
        f"{found['runs']:,} scenarios, {found['steps']:,} steps compared with the oracle, "
        f"{found['requests']:,} requests, **{found['differences']} differences**."
    )


def _fuzz() -> str:
    found = _read("fuzz")
    inputs: dict[str, int] = found["inputs"]
    lines = [
        "## Inputs fuzzed",
        "",
        f"{found['date']}, `make fuzz SECONDS={found['seconds']:.0f}`, "
        f"{sum(inputs.values()):,} inputs, **{len(found['failed'])} findings**.",
        "",
        "| target | inputs |",
        "|---|--:|",
        *(f"| `{name}` | {number:,} |" for name, number in inputs.items()),
    ]
    return "\n".join(lines)


def _read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return found
