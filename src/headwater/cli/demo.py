"""`headwater demo`: the whole product in one command, on a chain that forks while you watch."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from headwater.errors import MissingExtraError
from headwater.spark.jvm import find_java

_USDC = "0xa0b86991c6218b36c1d19d4a2e9eb0ce3606eb48"


def demo(
    blocks: Annotated[
        int, typer.Option(min=50, help="Blocks that the simulated chain begins with.")
    ] = 5000,
    seconds: Annotated[
        float, typer.Option(min=1, help="How long to follow the head afterwards.")
    ] = 16,
    seed: Annotated[int, typer.Option(help="The same seed gives the same chain and forks.")] = 7,
    out: Annotated[
        Path, typer.Option(help="Directory for chain.duckdb and forks.png; made if missing.")
    ] = Path("headwater-demo"),
    port: Annotated[
        int, typer.Option(help="Port of the simulated portal on 127.0.0.1; 0 takes any free one.")
    ] = 0,
    portal: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Follow this dataset of a real portal instead."),
    ] = None,
    contract: Annotated[
        list[str] | None,
        typer.Option(help="With --portal: whose events. May be repeated.  [default: USDC]"),
    ] = None,
    event: Annotated[
        list[str] | None,
        typer.Option(
            help="With --portal: which events, a table each. May be repeated.  "
            "[default: erc20.Transfer, erc20.Approval]"
        ),
    ] = None,
) -> None:
    """See it work: Spark, DuckDB and a chain that forks, in less than a minute.

    A simulated blockchain is started on this machine. A real pipeline reads its blocks with Spark
    into a DuckDB file, then follows its head block by block. The chain replaces some of its newest
    blocks on the way, as real chains do; the tables follow. At the end every row is compared with
    the chain, and a picture shows what was undone.

    The exit code is 1 if a single row differs. Ctrl-C ends it early; what is written by then is
    checked all the same.

    Examples:

        headwater demo --seed 42 --seconds 40

        headwater demo --portal https://portal.sqd.dev/datasets/ethereum-mainnet --seconds 60

    The second follows USDC on Ethereum. There is no oracle for a real chain, so there is
    nothing to compare with, and forks come when they come.
    """
    for package in ("duckdb", "matplotlib"):
        if find_spec(package) is None:
            raise MissingExtraError(
                f"the demo needs the package {package}: pip install 'headwater[demo]'"
            )
    from headwater.cli.demo_run import EVENTS, make_room, run_on_portal, run_simulated

    find_java()
    make_room(out)
    if portal is None:
        good = run_simulated(out, blocks=blocks, seconds=seconds, seed=seed, port=port)
    else:
        events, contracts = event or list(EVENTS.values()), contract or [_USDC]
        good = run_on_portal(out, portal, events=events, contracts=contracts, seconds=seconds)
    if not good:
        raise typer.Exit(1)
