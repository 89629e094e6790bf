#!/usr/bin/env bash
# Builds wheel and source archive into dist/, installs the wheel into an environment of its own with
# the locked dependencies, and tries what a user tries first. Called by make with the Python to use.
set -euo pipefail
python=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
cd "$(dirname "$0")/.."

rm -rf dist
"$python" -m hatchling build >/dev/null
version=$("$python" -c 'import headwater; print(headwater.__version__)')
wheel=$PWD/dist/headwater-$version-py3-none-any.whl
test -f "$wheel" -a -f "dist/headwater-$version.tar.gz"

place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
"$python" -m venv "$place/venv"
pip=("$place/venv/bin/python" -m pip --disable-pip-version-check --quiet)
"${pip[@]}" install --require-hashes --no-deps --requirement requirements.lock
"${pip[@]}" install --no-deps "$wheel"

cd "$place"  # away from the sources, so that only what is in the wheel can be found
unset PYTHONPATH
venv/bin/python - "$version" <<'PYTHON'
import importlib.resources as resources
import sys
from importlib.metadata import version

import headwater
from headwater import evm, portal_stream
from headwater.targets import clickhouse_target, duckdb_target, postgres_target

assert headwater.__version__ == version("headwater") == sys.argv[1], headwater.__version__
assert "site-packages" in headwater.__file__, headwater.__file__
assert resources.files("headwater").joinpath("py.typed").is_file()
evm.events("erc20.Transfer")
PYTHON
venv/bin/headwater --help >/dev/null
venv/bin/headwater simulate --blocks 10 --for 0.1 >/dev/null
venv/bin/headwater demo --help >/dev/null
venv/bin/headwater init project >/dev/null  # the tutorial: a project, its test through a fork
(cd project && ../venv/bin/python -m pytest -q -p no:cacheprovider)
(cd project && ../venv/bin/python - <<'PYTHON'
"""Run the project as a person would: progress on the terminal, metrics over HTTP, then Ctrl-C."""
import signal
import subprocess
from urllib.request import urlopen

command = ["../venv/bin/headwater", "run", "pipeline.py", "--port", "0"]
with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as run:
    address = next(line for line in run.stdout if line.startswith("dashboard: ")).split()[1]
    shown = next(line for line in run.stdout if "at the head" in line)
    with urlopen(address + "metrics") as answer:
        metrics = answer.read().decode()
    run.send_signal(signal.SIGTERM)
    run.communicate(timeout=120)
assert 'headwater_cursor_block{id="transfers"}' in metrics, metrics
assert run.returncode == 143, run.returncode
print(shown.strip())
PYTHON
)
echo "dist/$(basename "$wheel") works"
