"""`headwater init`: a project to begin with: a pipeline, its test, a README."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from headwater import __version__
from headwater.cli.target_options import say
from headwater.errors import ProjectFolderError

ETHEREUM = "https://portal.sqd.dev/datasets/ethereum-mainnet"
SOLANA = "https://portal.sqd.dev/datasets/solana-mainnet"


class ProjectTemplate(StrEnum):
    """The template of a new project."""

    TRANSFERS = "transfers"
    SWAPS = "swaps"
    BALANCES = "balances"
    SOLANA = "solana"
    CHANGES = "changes"


@dataclass(frozen=True, slots=True)
class Facts:
    """How the shared files of a project differ: README, test."""

    title: str
    subject: str
    tables: tuple[str, ...]
    network: str = "Network.EVM"
    real_portal: str = ETHEREUM
    simulate: str = ""
    more_environment: str = ""
    more_variables: str = ""


FACTS = {
    ProjectTemplate.TRANSFERS: Facts("Token transfers", "all ERC-20 transfers", ("transfers",)),
    ProjectTemplate.SWAPS: Facts(
        "Swaps",
        "the swaps of all pools that a factory creates",
        ("swaps",),
        more_environment='    monkeypatch.setenv("FACTORY", portal.chain.population.factory)\n'
        '    monkeypatch.setenv("FACTORY_FROM", "0")\n',
        more_variables="| `FACTORY`, `FACTORY_FROM` | the contract that creates pools, and the "
        "block of its first one | Uniswap V2 on Ethereum |\n",
    ),
    ProjectTemplate.BALANCES: Facts(
        "Balances", "the balances of all token holders", ("balances", "transfers")
    ),
    ProjectTemplate.SOLANA: Facts(
        "Solana transfers",
        "SPL token transfers",
        ("transfers",),
        network="Network.SOLANA",
        real_portal=SOLANA,
        simulate=" --network solana",
    ),
    ProjectTemplate.CHANGES: Facts(
        "Allowances", "what spenders may take from whom, row by row", ("allowances",)
    ),
}


def init(
    folder: Annotated[
        Path, typer.Argument(file_okay=False, help="Where; created if it is not there.")
    ] = Path(),
    template: Annotated[
        ProjectTemplate, typer.Option("--template", "-t", help="What to begin with.")
    ] = ProjectTemplate.TRANSFERS,
) -> None:
    """Create a project: pipeline.py, test_pipeline.py, README.md, requirements.txt.

    It runs at once, on a simulated chain that grows and forks; with PORTAL=https://… it follows a
    real one. Its test runs the pipeline through a fork.

    - `transfers`: ERC-20 transfers

    - `swaps`: swaps of all pools that a Uniswap factory creates

    - `balances`: balances of token holders, as an aggregate

    - `solana`: SPL token transfers

    - `changes`: rows inserted, updated and deleted by the change model

    Example:

        headwater init my-swaps --template swaps

        cd my-swaps && headwater run pipeline.py --port 9090
    """
    if folder.is_dir() and any(folder.iterdir()):
        raise ProjectFolderError("the folder is not empty", folder=folder)
    written = _texts(template)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in written.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ProjectFolderError(
            "the project cannot be written", folder=folder, reason=error.strerror
        ) from error
    say(f"Created {', '.join(written)} in {folder.resolve()}")
    if folder != Path():
        say(f"  cd {folder}")
    say("  python pipeline.py                      # a simulated chain; Ctrl-C ends it")
    say("  headwater run pipeline.py --port 9090   # the same, with a page at localhost:9090")
    say("  pytest                                  # the pipeline through a fork")


def _texts(template: ProjectTemplate) -> dict[str, str]:
    """Return the files of a project, by name."""
    facts = FACTS[template]
    tables = "[" + ", ".join(f'"{table}"' for table in facts.tables) + "]"
    values = {**asdict(facts), "tables": tables, "version": __version__}
    sources = files("headwater.cli").joinpath("templates")

    def text(name: str) -> str:
        return sources.joinpath(f"{name}.template").read_text(encoding="utf-8")

    shared = ("test_pipeline.py", "README.md", "requirements.txt")
    filled = {name: Template(text(name)).substitute(values) for name in shared}
    return {"pipeline.py": text(f"{template}.py"), **filled}
