"""A real EVM node for tests: anvil, installed by npm into a temporary folder, once for a machine.

What it says is asked of it directly here, by a client of these tests alone.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.request import Request, urlopen

from tests.shared import HANG_S

PACKAGE = "@foundry-rs/anvil@1.7.1"
TRANSFER = "0xddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef"
_RUNTIME = f"60243560005260043533 7f{TRANSFER[2:]} 60206000a3 600160005260206000f3".replace(" ", "")
_SIZE = f"{len(_RUNTIME) // 2:02x}"
TOKEN = f"0x60{_SIZE}600c60003960{_SIZE}6000f3{_RUNTIME}"
"""Creates a contract that emits `Transfer(caller, to, value)` whenever `transfer` is called."""


def installed_anvil() -> Path | str:
    """Return the program, or why there is none."""
    folder = Path(tempfile.gettempdir()) / f"headwater-anvil-{PACKAGE.rpartition('@')[2]}"
    folder = folder.with_name(f"{folder.name}-{os.getuid()}")
    if not folder.exists():
        npm = shutil.which("npm")
        if npm is None:
            return "npm is not installed"
        new = Path(tempfile.mkdtemp(prefix=folder.name))
        options = ["--no-audit", "--no-fund", "--fetch-retries=0", "--prefix", str(new)]
        command = [npm, "install", *options, PACKAGE]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if not done.returncode:
            with suppress(OSError):  # another process was quicker
                new.rename(folder)
        shutil.rmtree(new, ignore_errors=True)
        if done.returncode:
            return f"npm cannot install {PACKAGE}: {' '.join(done.stderr.split())[:200]}"
    found = next(folder.glob("node_modules/@foundry-rs/anvil-*/bin/anvil"), None)
    return found or f"{PACKAGE} has no program for this machine"


class Anvil:
    """One node, which mines a block only when it is told to. Use as a context manager."""

    def __init__(self, program: Path, *options: str) -> None:
        self._command = [str(program), "--host", "127.0.0.1", "--no-mining", "--silent", *options]
        self._process: subprocess.Popen[bytes] | None = None
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Anvil:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start the node, and wait until it answers."""
        self._process = subprocess.Popen([*self._command, "--port", str(self.port)])
        until = time.monotonic() + HANG_S
        while True:
            try:
                self("eth_chainId")
                break
            except OSError:
                assert self._process.poll() is None, "anvil has ended"
                assert time.monotonic() < until, "anvil does not answer"
                time.sleep(0.02)
        self.accounts: list[str] = self("eth_accounts")

    def stop(self) -> None:
        """End the node."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(HANG_S)
            self._process = None

    def __call__(self, method: str, *params: object) -> Any:
        """Ask the node directly."""
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        request = Request(self.url, json.dumps(body).encode(), {"content-type": "application/json"})
        with urlopen(request, timeout=HANG_S) as response:
            reply = json.load(response)
        assert "error" not in reply, reply
        return reply["result"]

    def mine(self, count: int = 1) -> None:
        """Add blocks; the first one has what is pending."""
        self("anvil_mine", hex(count))

    def deploy(self) -> str:
        """Create a token by a plain transaction, in a block of its own."""
        sent = self("eth_sendTransaction", {"from": self.accounts[0], "data": TOKEN})
        self.mine()
        return str(self("eth_getTransactionReceipt", sent)["contractAddress"])

    def transfer(self, token: str, sender: int, receiver: int, value: int) -> str:
        """Send a transaction that emits one Transfer."""
        data = f"0xa9059cbb{self.accounts[receiver][2:]:0>64}{value:064x}"
        whole = {"from": self.accounts[sender], "to": token, "data": data, "gas": "0x186a0"}
        return str(self("eth_sendTransaction", whole))

    def reorganize(self, depth: int, transactions: Sequence[tuple[object, int]] = ()) -> None:
        """Replace the newest blocks by as many others, which hold these transactions."""
        self("anvil_reorg", depth, list(transactions))

    @property
    def head(self) -> int:
        """The number of the newest block."""
        return int(self("eth_blockNumber"), 16)
