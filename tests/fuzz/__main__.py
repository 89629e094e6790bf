"""Run the fuzz targets for a while: `python -m tests.fuzz --seconds 60`, or `make fuzz`.

With atheris each target is mutated towards new code, in a process of its own; without it (it exists
for Linux on x86 alone) inputs are mutated at random. Either way a finding is written to a file, and
the line that replays it is printed.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import random
import subprocess
import sys
import time
import traceback
from datetime import UTC, datetime
from pathlib import Path

from tests.fuzz.seeds import seeds_of
from tests.fuzz.targets import TARGETS

FOUND = Path(".fuzz")
INPUTS: dict[str, int] = {}  # how many each target was given
_TOKENS = (b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"null", b"-1", b"1e400", b"0x",
           b"\x00", b"\xff", b"9" * 20, b"\n", b"\xed\xa0\x80", b"true")  # fmt: skip


def main() -> int:
    """Parse the arguments and run; 0 if nothing was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="for all targets together")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--target", choices=sorted(TARGETS), default=None)
    parser.add_argument("--replay", type=Path, default=None, help="a file; needs --target")
    parser.add_argument("--results", type=Path, default=None, help="write the figures to a file")
    given = parser.parse_args()
    if given.replay is not None:
        TARGETS[given.target](given.replay.read_bytes())
        print(f"{given.target}: {given.replay} is harmless now")
        return 0
    names = sorted(TARGETS) if given.target is None else [given.target]
    seed = random.SystemRandom().randrange(1, 2**31) if given.seed is None else given.seed
    guided = importlib.util.find_spec("atheris") is not None
    run = _run_guided if guided else _run_random
    print(f"seed {seed}, {given.seconds / len(names):.0f} s for each of {len(names)} targets, "
          f"{'guided by coverage' if guided else 'at random'}", flush=True)  # fmt: skip
    failed = [name for name in names if not run(name, given.seconds / len(names), seed)]
    if given.results is not None:
        figures = {"date": datetime.now(UTC).date().isoformat(), "seconds": given.seconds,
                   "seed": seed, "inputs": INPUTS, "failed": failed}  # fmt: skip
        given.results.write_text(json.dumps(figures, indent=1) + "\n")
    print(f"findings: {', '.join(failed) or 'none'}")
    return 1 if failed else 0


def _run_guided(name: str, seconds: float, seed: int) -> bool:
    corpus = FOUND / name / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    for data in seeds_of(name):
        (corpus / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)
    prefix = f"{FOUND / name}/"
    options = [f"-max_total_time={max(1, round(seconds))}", f"-seed={seed}", "-max_len=8192",
               f"-artifact_prefix={prefix}", "-print_final_stats=1", "-verbosity=0",
               "-rss_limit_mb=4096", "-timeout=25"]  # fmt: skip
    ran = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.guided", name, str(corpus), *options],
        capture_output=True,
        text=True,
        check=False,
    )
    runs = next((text.split()[-1] for text in ran.stderr.splitlines()
                 if "number_of_executed_units" in text), "?")  # fmt: skip
    INPUTS[name] = int(runs) if runs.isdecimal() else 0
    print(f"{name}: {runs} inputs, {len(list(corpus.iterdir()))} kept for their coverage",
          flush=True)  # fmt: skip
    if ran.returncode:
        print(ran.stdout[-3000:] + ran.stderr[-3000:])
        for path in sorted(FOUND.joinpath(name).glob("*-*")):
            _tell(name, path)
    return ran.returncode == 0


def _run_random(name: str, seconds: float, seed: int) -> bool:
    dice, pool, runs = random.Random(f"{name}/{seed}"), list(seeds_of(name)), 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        data = _mutate(dice, dice.choice(pool))
        runs += 1
        try:
            TARGETS[name](data)
        except Exception:  # noqa: BLE001 - whatever escapes is the finding
            traceback.print_exc()
            path = FOUND / name / f"crash-{hashlib.sha256(data).hexdigest()[:16]}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            _tell(name, path)
            return False
    INPUTS[name] = runs
    print(f"{name}: {runs} inputs", flush=True)
    return True


def _mutate(dice: random.Random, data: bytes) -> bytes:
    for _ in range(dice.randrange(1, 5)):
        at = dice.randrange(len(data) + 1)
        length = dice.choice((0, 1, 1, 4, 32))
        new = dice.choice((dice.randbytes(dice.randrange(4)), dice.choice(_TOKENS), b"",
                           data[at : at + dice.randrange(64)]))  # fmt: skip
        data = data[:at] + new + data[at + length :]
    return data


def _tell(name: str, path: Path) -> None:
    print(f"found: {path}\n  replay: python -m tests.fuzz --target {name} --replay {path}\n"
          f"  keep it, once fixed: mv {path} tests/fuzz/kept/{name}/")  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
