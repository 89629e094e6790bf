"""`headwater simulate`: a portal on this machine, with a chain that forks while you watch."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack, suppress
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from headwater.errors import MissingExtraError
from headwater.stream.view import can_draw
from headwater.testing import ChainSim, LiveChain, Network, PortalServer, PortalSim, Surface

_TRIES: dict[Network, tuple[str, str, tuple[str, ...]]] = {
    Network.EVM: ("logs", "log", ("address", "topics", "data")),
    Network.SOLANA: ("instructions", "instruction", ("programId", "accounts", "data")),
    Network.BITCOIN: ("outputs", "output", ("value", "scriptPubKeyAddress")),
    Network.TRON: ("transactions", "transaction", ("hash", "type", "parameter")),
    Network.HYPERLIQUID: ("fills", "fill", ("user", "coin", "px", "sz")),
    Network.SUBSTRATE: ("events", "event", ("name", "args")),
}
_SHOWN_FORKS = 8


def simulate(
    port: Annotated[int, typer.Option(help="Port on 127.0.0.1; 0 takes any free one.")] = 0,
    seed: Annotated[int, typer.Option(help="The same seed gives the same chain.")] = 0,
    network: Annotated[Network, typer.Option(help="What kind of chain.")] = Network.EVM,
    blocks: Annotated[int, typer.Option(min=1, help="Blocks to begin with.")] = 1000,
    interval: Annotated[float, typer.Option(min=0.001, help="Seconds between blocks.")] = 1.0,
    fork_rate: Annotated[
        float, typer.Option(min=0, max=1, help="Chance that a step forks instead of adding.")
    ] = 0.1,
    finality_depth: Annotated[
        int, typer.Option(min=0, help="How far finality follows behind the head.")
    ] = 20,
    replicas: Annotated[
        int, typer.Option(min=1, help="Servers behind the address; each next one lags more.")
    ] = 1,
    surface: Annotated[
        Surface,
        typer.Option(help="Which service is played; hotblocks is the real-time one by itself."),
    ] = Surface.PORTAL,
    window: Annotated[
        int | None,
        typer.Option(min=1, help="Keep only so many of the newest blocks; left out, all of them."),
    ] = None,
    genesis_time: Annotated[
        int | None,
        typer.Option(help="Time of the first block in Unix seconds; left out, the newest is now."),
    ] = None,
    seconds: Annotated[
        float | None, typer.Option("--for", min=0, help="Stop by itself after this many seconds.")
    ] = None,
    substreams: Annotated[
        bool, typer.Option("--substreams", help="Serve a Substreams endpoint on the same chain.")
    ] = False,
    substreams_port: Annotated[
        int, typer.Option(help="Its port on 127.0.0.1; 0 takes any free one.")
    ] = 0,
) -> None:
    """Serve a simulated SQD portal on this machine: a chain that grows and forks.

    Point a stream at the address it prints, and watch how your tables follow the forks.
    Everything but the times of blocks follows from the seed, so a run can be repeated; with
    --genesis-time the times do, too. Ctrl-C ends it.

    Example, a fast and restless chain for one minute:

        headwater simulate --seed 7 --interval 0.2 --fork-rate 0.3 --for 60

    A service whose window is shorter than a stream's pause, so that blocks get lost:

        headwater simulate --surface hotblocks --window 100

    While it runs, `POST /control/fork {"depth": 5}` forks it at once, and `GET /control/state`
    tells where it stands; `headwater.testing` has the same in Python.
    """
    chain = ChainSim(seed, network=network, block_time_s=interval, genesis_time=genesis_time or 0)
    chain.grow(blocks - 1)
    if genesis_time is None:
        chain.follow_clock(time.time)
    if chain.head.number >= finality_depth:
        chain.finalize(chain.head.number - finality_depth)
    sim = PortalSim(chain, seed=seed, replicas=replicas, surface=surface, window=window)
    for replica in sim.replicas:
        if replica.index:
            replica.lag(replica.index)
    live = LiveChain(
        chain, seed=seed, interval=interval, finality_depth=finality_depth, fork_rate=fork_rate
    )
    console = Console(soft_wrap=True)
    with ExitStack() as stack:
        server = stack.enter_context(PortalServer(sim, port=port, live=live))
        _introduce(console, server)
        if substreams:
            _serve_substreams(console, chain, substreams_port, stack)
        with suppress(KeyboardInterrupt):
            _watch(console, server, seconds)
    console.print(f"stopped: {_summary(server)}", highlight=False)


def _introduce(console: Console, server: PortalServer) -> None:
    network = server.chain.network
    family, entity, names = _TRIES[network]
    block = dict.fromkeys(("number", "hash", "timestamp"), True)
    fields = {"block": block, entity: dict.fromkeys(names, True)}
    document: dict[str, object] = {
        "type": network.value,
        "fromBlock": server.sim.oldest,
        "fields": fields,
        family: [{}],
    }
    query = json.dumps(document, separators=(",", ":"))
    console.print(Text(f"portal   {server.url}"))
    console.print(Text(f"control  {server.base_url}/control/state"))
    console.print(
        Text("try      ") + Text(f"curl -s {server.url}/stream -d '{query}' | head -c 600")
    )
    console.print(Text(f"         curl -s {server.base_url}/control/fork -d '{{\"depth\":3}}'"))


def _serve_substreams(console: Console, chain: ChainSim, port: int, stack: ExitStack) -> None:
    """Serve the chain as a Substreams endpoint, and say where it is and where its package is."""
    try:
        testing = import_module("headwater.testing.substreams")
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            "a Substreams endpoint needs grpcio and protobuf: pip install 'headwater[substreams]'"
        ) from error
    server = stack.enter_context(testing.simulated_endpoint(chain=chain, port=port))
    folder = Path(stack.enter_context(TemporaryDirectory(prefix="headwater-")))
    package = folder / "simulated.spkg"
    package.write_bytes(server.package)
    console.print(Text(f"endpoint {server.url}"))
    console.print(Text(f"package  {package}"))


def _watch(console: Console, server: PortalServer, seconds: float | None) -> None:
    """Show where the chain stands until the time is over."""
    end = None if seconds is None else time.monotonic() + seconds
    if can_draw(console):
        with Live(_table(server), console=console, refresh_per_second=4) as display:
            while _wait(end, 0.25):
                display.update(_table(server))
            display.update(_table(server))  # how it ends stays on the screen
        return
    shown = ""
    while True:
        line = _summary(server)
        if line != shown:
            console.file.write(line + "\n")
            console.file.flush()
            shown = line
        if not _wait(end, 1.0):
            return


def _wait(end: float | None, step: float) -> bool:
    """Wait a step, or up to the end; tell whether there is time left."""
    left = step if end is None else min(step, end - time.monotonic())
    time.sleep(max(0.0, left))
    return end is None or time.monotonic() < end


def _summary(server: PortalServer) -> str:
    chain = server.chain
    with chain.lock:
        final = chain.finalized
        head = f"head {chain.head.number}, finalized {'-' if final is None else final.number}"
        forks = f"forks {len(chain.forks)}"
        if chain.forks:
            forks += f" (last {chain.forks[-1].depth} deep)"
    return f"{head}, {forks}, requests {_requests(server)}"


def _requests(server: PortalServer) -> str:
    statuses = sorted(server.ledger.statuses().items())
    return " ".join(f"{status}:{count}" for status, count in statuses) or "0"


def _table(server: PortalServer) -> Group:
    chain = server.chain
    table = Table(title=f"{chain.network.value} chain, seed {chain.seed}", title_justify="left")
    for heading in ("head", "finalized", "forks", "requests by status"):
        table.add_column(heading)
    with chain.lock:
        final = chain.finalized
        table.add_row(
            str(chain.head.cursor),
            "-" if final is None else str(final.cursor),
            str(len(chain.forks)),
            _requests(server),
        )
        recent = [
            f"fork after {fork.ancestor.number}: {fork.depth} replaced"
            for fork in chain.forks[-_SHOWN_FORKS:]
        ]
    return Group(table, *(Text(line, style="yellow") for line in reversed(recent)))
