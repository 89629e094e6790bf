#!/usr/bin/env bash
# Builds the wheel, installs it into an empty environment, and goes the way of docs/tutorial.md there:
# from an empty folder to a pipeline of one's own with progress, metrics and a passing fork test.
#
#   try_wheel.sh PYTHON              wheel and source archive in dist/, the locked dependencies (make wheel)
#   try_wheel.sh PYTHON --installed  nothing is downloaded: the dependencies are those of PYTHON
set -euo pipefail
python=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
mode=${2:-}
cd "$(dirname "$0")/.."
sources=$PWD
unset PYTHONPATH

say() { echo "$((SECONDS / 60)):$(printf %02d $((SECONDS % 60))) $*"; }

place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
"$python" -m venv --without-pip "$place/venv"
pip=("$python" -m pip --python "$place/venv/bin/python" --disable-pip-version-check --quiet)
if [ "$mode" = --installed ]; then
  dist=$place/dist
  "$python" -m hatchling build --target wheel --directory "$dist" >/dev/null
  paths='import sysconfig; print(sysconfig.get_path("purelib"))'  # the file adds a path, not its .pth files
  "$python" -c "$paths" >"$("$place/venv/bin/python" -c "$paths")/dependencies.pth"
else
  dist=$PWD/dist
  rm -rf "$dist"
  say "building the wheel and the source archive"
  "$python" -m hatchling build >/dev/null
  test -f "$dist"/headwater-*.tar.gz
  say "installing the locked dependencies into an empty environment: some minutes"
  "${pip[@]}" install --require-hashes --no-deps --requirement requirements.lock
fi
wheel=$(echo "$dist"/headwater-*-py3-none-any.whl)
version=$(basename "$wheel" | cut -d- -f2)
"${pip[@]}" install --no-deps --no-index "$wheel"

cd "$place"  # away from the sources, so that only what is in the wheel can be found
began=$SECONDS
say "importing what was installed"
venv/bin/python - "$version" <<'PYTHON'
import importlib.resources as resources
import sys
from importlib.metadata import version

import headwater
from headwater import evm, portal_stream
from headwater.targets import clickhouse_target, duckdb_target, postgres_target

assert headwater.__version__ == version("headwater") == sys.argv[1], headwater.__version__
assert headwater.__file__.startswith(sys.prefix), headwater.__file__
assert resources.files("headwater").joinpath("py.typed").is_file()
evm.events("erc20.Transfer")
PYTHON
if [ "$mode" != --installed ]; then  # tests/cli does the same with the sources
  say "trying the commands, and the programs of the twelve tasks"
  venv/bin/headwater --help >/dev/null
  venv/bin/headwater simulate --blocks 10 --for 0.1 >/dev/null
  venv/bin/headwater demo --help >/dev/null
  mkdir tasks
  for program in $(sed -n 's/.*(\.\.\/examples\/\([a-z_]*\.py\)) |$/\1/p' "$sources/docs/tasks.md"); do
    say "  $program"
    (cd tasks && ../venv/bin/python "$sources/examples/$program" >../said 2>&1) || { cat said; exit 1; }
  done
fi

say "going the way of the tutorial: a project, a fork test, a run with metrics"
venv/bin/headwater init project >/dev/null
cd project
../venv/bin/python - <<'PYTHON'
"""Make the project one's own: a second output of one's own event, and a transform."""
from pathlib import Path

pipeline, test = Path("pipeline.py"), Path("test_pipeline.py")
own_output = '''        "approvals": evm.events(
            "Approval(address indexed owner, address indexed spender, uint256 value)", range=FIRST
        ),
    },
).pipe_batches(without_small_change)
'''
own_transform = '''
def without_small_change(data):
    rows = data["transfers"].toArrow()
    kept = [len(value) > 3 for value in rows["value"].cast("string").to_pylist()]
    return {**data, "transfers": rows.filter(kept)}


stream = portal_stream('''
text = pipeline.read_text()
for before, after in (("        )\n    },\n)\n", "        ),\n" + own_output),
                      ("\nstream = portal_stream(", "\n" + own_transform)):
    assert text.count(before) == 1, before
    text = text.replace(before, after)
pipeline.write_text(text)
text = test.read_text()
assert 'TABLES = ["transfers"]' in text
test.write_text(text.replace('TABLES = ["transfers"]', 'TABLES = ["transfers", "approvals"]'))
PYTHON
PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 ../venv/bin/python -m pytest -q -p no:cacheprovider
../venv/bin/python - <<'PYTHON'
"""Run it as a person would: progress on the terminal, metrics over HTTP, rows, then a stop."""
import re
import signal
import subprocess
from urllib.request import urlopen

import duckdb

command = ["../venv/bin/headwater", "run", "pipeline.py", "--port", "0"]
with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as run:
    address = next(line for line in run.stdout if line.startswith("dashboard: ")).split()[1]
    shown = next(line for line in run.stdout if "at the head" in line)
    with urlopen(address + "metrics") as answer:
        metrics = answer.read().decode()
    run.send_signal(signal.SIGTERM)
    run.communicate(timeout=300)
assert run.returncode == 0, run.returncode
cursor = re.search(r'^headwater_cursor_block{id="transfers"} (\S+)$', metrics, re.M)
assert cursor and float(cursor[1]) >= 500, metrics
with duckdb.connect("simulated/transfers.duckdb", read_only=True) as file:
    for table in ("transfers", "approvals"):
        assert file.execute(f"SELECT count(*) FROM {table}").fetchone()[0], table
    (digits,) = file.execute("SELECT min(length(value::VARCHAR)) FROM transfers").fetchone()
    assert digits > 3, digits
print(shown.strip())
PYTHON
took=$((SECONDS - began))
test "$took" -lt 600
echo "$(basename "$wheel") works: from an empty folder to a pipeline of one's own in $took s"
