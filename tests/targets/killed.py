"""Writers in processes of their own, each of which is killed without warning.

One process imports what they need; every writer is a fork of it that has opened nothing yet.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
_MOTHER = """
import os, sys, traceback
{module}
while sys.stdin.readline():
    child = os.fork()
    if not child:
        print(os.getpid(), flush=True)
        try:
            write(*sys.argv[1:])
        except BaseException:
            traceback.print_exc()
        os._exit(1)
    os.waitpid(child, 0)
    print("gone", flush=True)
"""


class Writers:
    """Starts writers one after the other. A writer prints a line for each block."""

    def __init__(self, mother: subprocess.Popen[str]) -> None:
        assert mother.stdin is not None
        assert mother.stdout is not None
        self._orders, self._lines = mother.stdin, mother.stdout

    def kill_one_after(self, blocks: int) -> None:
        """Start a writer, and kill it once it has written so many blocks."""
        self._orders.write("\n")
        self._orders.flush()
        child = int(self._lines.readline())
        for _ in range(blocks):
            assert self._lines.readline().strip().isdigit(), "the writer failed"
        os.kill(child, signal.SIGKILL)
        while self._lines.readline() != "gone\n":
            pass


@contextmanager
def writers(module: str, *arguments: str) -> Iterator[Writers]:
    """Run code that defines `write`; every writer calls it with these arguments."""
    command = [sys.executable, "-c", _MOTHER.format(module=module), *arguments]
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True, cwd=ROOT) as mother:
        yield Writers(mother)
        mother.kill()
