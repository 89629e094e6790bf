"""What a supervisor does with a pipeline: starts it, asks for its health, and stops it."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from urllib.request import urlopen

PIPELINE = """
import os
from headwater import duckdb_target, evm, portal_stream
stream = portal_stream(
    id="deployed", portal=os.environ["PORTAL"],
    outputs={"transfers": evm.events("erc20.Transfer", range=0)})
target = duckdb_target("deployed.duckdb")
"""
HEADWATER = [sys.executable, "-c", "from headwater.cli import main; main()"]  # `headwater`


def started(*words, **env):
    return subprocess.Popen(
        [*HEADWATER, *words], env={**os.environ, **env}, text=True, stdout=subprocess.PIPE
    )


def line_with(process, text):
    return next(line for line in process.stdout if text in line)


def ask(address):
    with urlopen(address) as answer:
        return answer.read()


Path("pipeline.py").write_text(PIPELINE)
portal = started("simulate", "--blocks", "60")
pipeline = None
try:
    address = re.search(r"http://\S+", line_with(portal, "http://"))[0]
    run = ["run", "pipeline.py", "--port", "0", "--no-progress"]
    pipeline = started(*run, PORTAL=address)
    page = line_with(pipeline, "dashboard: ").split()[1]
    while not any(stream["cursor"] for stream in json.loads(ask(f"{page}api/streams"))):
        time.sleep(0.1)  # nothing is committed yet
    print("health:", ask(f"{page}health").decode().strip())
finally:
    if pipeline is not None:
        pipeline.send_signal(signal.SIGTERM)
        pipeline.communicate()
        print("exit code:", pipeline.returncode)  # 143: the batch in hand was committed
    portal.terminate()
    portal.communicate()
