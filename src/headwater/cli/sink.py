"""`headwater sink`: a Substreams module into a database, by the SQL sink's commands and flags.

Flags have the names that users of substreams-sink-sql know.
docs/migrate-from-substreams-sink-sql.md goes through them one by one.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from headwater.cli.target_options import say, substreams_module, takes
from headwater.core import Flush
from headwater.errors import InvalidOptionError

app = typer.Typer(
    no_args_is_help=True,
    help="Stream a Substreams module into PostgreSQL, ClickHouse or DuckDB, as the SQL sink does.",
    rich_markup_mode="markdown",
)

PackageFile = Annotated[str, typer.Argument(help="A .spkg: a file or an address; .zst too.")]
Params = Annotated[
    list[str] | None, typer.Option("--params", "-p", help="module=value; may be repeated.")
]
Network = Annotated[str, typer.Option("--network", help="Whose settings of the package apply.")]


@dataclass(slots=True)
class Module:
    """Which module of which package goes into which database."""

    dsn: Annotated[
        str,
        typer.Argument(
            envvar="SUBSTREAMS_SINK_DSN",
            show_envvar=True,
            help="psql://user:password@host:5432/name?schemaName=public, clickhouse://…, or the "
            "path of a DuckDB file. ${NAME} stands for a variable of the environment.",
        ),
    ]
    package: PackageFile
    module: Annotated[str | None, typer.Argument(help="If not the package's own.")] = None
    params: Params = None
    network: Network = ""

    def open(self) -> tuple[Any, Any, str]:
        """Return the database, the package and the module's name."""
        place = substreams_module("sink_database").SinkDsn.parse(self.dsn, os.environ)
        package = substreams_module("package").Package.read(self.package)
        resolved = package.resolve(self.network, self.pairs)
        return place, resolved, resolved.choose(self.module)

    @property
    def pairs(self) -> dict[str, str]:
        """The parameters by module."""
        return _pairs(self.params)


@dataclass(slots=True)
class Tables:
    """The form of the tables."""

    cursors_table: Annotated[str, typer.Option("--cursors-table", help="The table of cursors.")] = (
        "cursors"
    )
    history_table: Annotated[
        str, typer.Option("--history-table", help="The table of the change log.")
    ] = "substreams_history"
    bytes_encoding: Annotated[
        str, typer.Option("--bytes-encoding", help="raw, hex, 0xhex, base64 or base58.")
    ] = "raw"
    disable_foreign_keys: Annotated[
        bool, typer.Option("--disable-foreign-keys", help="Leave references out.")
    ] = False
    disable_primary_keys: Annotated[
        bool, typer.Option("--disable-primary-keys", help="Leave primary keys out.")
    ] = False
    disable_unique_constraints: Annotated[
        bool, typer.Option("--disable-unique-constraints", help="Leave unique columns out.")
    ] = False

    def target(self, place: Any, package: Any, chosen: str) -> tuple[Any, Any]:
        """Return where the module's outputs go, and what decodes them."""
        left_out = {
            "foreign_keys": self.disable_foreign_keys,
            "primary_keys": self.disable_primary_keys,
            "unique": self.disable_unique_constraints,
        }
        target: tuple[Any, Any] = substreams_module("sink").sink_target(
            place,
            package,
            chosen,
            history_table=self.history_table,
            cursors_table=self.cursors_table,
            bytes_encoding=self.bytes_encoding,
            without=[name for name, left in left_out.items() if left],
        )
        return target


_SWITCHES = {"--skip-package-validation", "--disable-block-number-index"}
_WITH_VALUES = {
    "--live-block-time-delta", "--flush-retry-count", "--flush-retry-delay", "--block-batch-size",
    "--write-mode", "--decode-workers", "--decode-batch-size", "--db-write-target-duration",
    "--db-write-max-size", "--spool-dir", "--spool-max-size", "--spool-max-idle",
    "--apply-constraints", "--pprof-listen-addr",
}  # fmt: skip
_REFUSED = {
    "--insecure": "certificates are always checked: --ca-file names others to trust",
    "--noop-mode": "--noop-mode would store a cursor without its rows",
}


class RunCommand(TyperCommand):
    """Takes the sink's flags that have nothing to set here, so that a command runs as it is."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Leave those flags out, and say which of them were given."""
        kept, left_out, rest = [], list[str](), iter(args)
        for argument in rest:
            name, equals, _ = argument.partition("=")
            if name in _REFUSED:
                raise InvalidOptionError(_REFUSED[name])
            if name not in _SWITCHES | _WITH_VALUES:
                kept.append(argument)
                continue
            left_out.append(name)
            if name in _WITH_VALUES and not equals:
                next(rest, None)
        if left_out:
            say(f"Without effect here: {', '.join(left_out)}.", "yellow")
        return super().parse_args(ctx, kept)


@app.command()
@takes(Module, Tables)
def setup(
    module: Module,
    tables: Tables,
    system_tables_only: Annotated[
        bool, typer.Option("--system-tables-only", help="Not the package's own tables.")
    ] = False,
    ignore_duplicate_table_errors: Annotated[
        bool, typer.Option("--ignore-duplicate-table-errors", help="Tables may be there already.")
    ] = False,
) -> None:
    """Create the tables of a module, and what the stream needs, ahead of the first run.

    Modules of DatabaseChanges bring the statements in the package; the tables of others follow
    from their annotations.

        headwater sink setup psql://localhost/chain usdc.spkg
    """
    place, package, chosen = module.open()
    config = package.sink_config
    if package.puts_out_changes(chosen) and not system_tables_only:
        if config is None or not config.schema.strip():
            raise InvalidOptionError("the package brings no statements that create its tables")
        run_schema = substreams_module("sink_database").run_schema
        count = run_schema(place, config.schema, forgiving=ignore_duplicate_table_errors)
        say(f"Ran {count} statements of the package.")
    target, _ = tables.target(place, package, chosen)
    target.bind(package.module_hash(chosen))
    target.recover()
    target.close()
    say(f"Ready for {chosen} ({package.module_hash(chosen)}).", "green")


@app.command(cls=RunCommand)
@takes(Module, Tables)
def run(
    module: Module,
    tables: Tables,
    block_range: Annotated[
        str | None, typer.Argument(metavar="START:STOP", help="STOP is not read; +N counts.")
    ] = None,
    endpoint: Annotated[str, typer.Option("--endpoint", "-e", help="host:port or a URL.")] = "",
    plaintext: Annotated[
        bool, typer.Option("--plaintext", help="No TLS to host:port; no key is sent.")
    ] = False,
    ca_file: Annotated[
        str, typer.Option("--ca-file", help="Certificates to trust instead of gRPC's own, PEM.")
    ] = "",
    header: Annotated[
        list[str] | None, typer.Option("--header", "-H", help="name:value; may be repeated.")
    ] = None,
    start_block: Annotated[str, typer.Option("--start-block", "-s", help="The first block.")] = "",
    stop_block: Annotated[str, typer.Option("--stop-block", "-t", help="The end, or +N.")] = "",
    final_blocks_only: Annotated[
        bool, typer.Option("--final-blocks-only", help="Nothing that could be undone.")
    ] = False,
    development_mode: Annotated[
        bool, typer.Option("--development-mode", help="No parallel processing of history.")
    ] = False,
    undo_buffer_size: Annotated[
        int, typer.Option("--undo-buffer-size", min=0, help="Newest blocks to hold back.")
    ] = 0,
    batch_block_flush_interval: Annotated[
        int, typer.Option("--batch-block-flush-interval", min=0, help="Final blocks a commit.")
    ] = 1000,
    batch_row_flush_interval: Annotated[
        int, typer.Option("--batch-row-flush-interval", min=0, help="Rows a commit.")
    ] = 100_000,
    live_block_flush_interval: Annotated[
        int, typer.Option("--live-block-flush-interval", min=0, help="Hot blocks a commit.")
    ] = 1,
    max_retries: Annotated[
        int,
        typer.Option(
            "--max-retries",
            min=-1,
            help="Sessions in a row without a block: 20 take about ten minutes; -1: no end.",
        ),
    ] = 20,
    infinite_retry: Annotated[
        bool, typer.Option("--infinite-retry", help="The same as --max-retries -1.")
    ] = False,
    force_protocol_version: Annotated[
        int, typer.Option("--force-protocol-version", help="2, 3 or 4; 0 asks the endpoint.")
    ] = 0,
    api_key_envvar: Annotated[
        str, typer.Option("--api-key-envvar", help="The variable of the API key.")
    ] = "SUBSTREAMS_API_KEY",
    api_token_envvar: Annotated[
        str, typer.Option("--api-token-envvar", help="The variable of the token.")
    ] = "SUBSTREAMS_API_TOKEN",
    on_module_hash_mismatch: Annotated[
        str, typer.Option("--on-module-hash-mismatch", help="error, warn or ignore.")
    ] = "error",
    prometheus_addr: Annotated[
        str, typer.Option("--prometheus-addr", help="host:port of page and metrics; empty: none.")
    ] = "",
    progress: Annotated[bool, typer.Option(help="Show how far it is.")] = True,
) -> None:
    """Stream a module into a database until STOP, or until it is told to end.

    It goes on where it stopped, or where substreams-sink-sql stopped in this database; that one can
    go on after it. The API key comes from SUBSTREAMS_API_KEY.

        headwater sink run psql://localhost/chain usdc.spkg -e mainnet.eth.streamingfast.io:443

        headwater sink run chain.duckdb usdc.spkg map_transfers 20000000:+1000
    """  # fmt: skip
    if module.module is not None and block_range is None and ":" in module.module:
        module.module, block_range = None, module.module
    start, stop = _range(block_range, start_block, stop_block)
    place, package, chosen = module.open()
    target, decoder = tables.target(place, package, chosen)
    stream_id = package.module_hash(chosen)
    if package.puts_out_changes(chosen) and place.kind != "clickhouse":
        note = substreams_module("sink_database").check_cursors(
            place, tables.cursors_table, stream_id, on_module_hash_mismatch
        )
        if note:
            say(note, "yellow")
    client = substreams_module("client")
    metrics = substreams_module("sink_metrics").sink_metrics()
    metrics.follow(stream_id)
    stream = import_module("headwater.stream.substreams").substreams_stream(
        id=stream_id,
        endpoint=_address(endpoint, plaintext),
        package=module.package,
        module=chosen,
        params=module.pairs,
        network=module.network,
        start=start,
        stop=stop,
        final_blocks_only=final_blocks_only,
        production_mode=not development_mode,
        decoder=decoder,
        flush=_flush(live_block_flush_interval, 0),
        flush_backfill=_flush(batch_block_flush_interval, batch_row_flush_interval),
        undo_buffer=undo_buffer_size,
        credentials=substreams_module("endpoint").Credentials.read(
            key_variable=api_key_envvar, token_variable=api_token_envvar, headers=_headers(header)
        ),
        dialling=client.Dialling(
            roots=_read_ca(ca_file),
            max_retries=None if infinite_retry or max_retries < 0 else max_retries,
            version=force_protocol_version or None,
        ),
        on_message=metrics.hear,
    )
    pipe_and_tell = import_module("headwater.stream.stream").pipe_and_tell
    pipe_and_tell(stream, target, prometheus_addr or None, progress=progress)


@app.command()
def info(
    package: PackageFile,
    params: Params = None,
    network: Network = "",
) -> None:
    """Show the modules of a package: what each puts out, where it begins, and its hash.

    headwater sink info usdc.spkg
    """
    parsed = substreams_module("package").Package.read(package)
    resolved = parsed.resolve(network, _pairs(params))
    say(f"{resolved.name or 'a package'}, network {resolved.network or 'unknown'}")
    for name in resolved.map_modules:
        say(
            f"{name}: {resolved.output_type(name)} from block {resolved.initial_block(name)}, "
            f"{resolved.module_hash(name)}"
        )


def _pairs(texts: list[str] | None) -> dict[str, str]:
    pairs = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise InvalidOptionError("--params takes module=value", got=repr(text))
        pairs[name] = value
    return pairs


def _address(endpoint: str, plaintext: bool) -> str:
    """Return the endpoint's address; --plaintext is for one without a scheme."""
    if not plaintext or endpoint.startswith("http://"):
        return endpoint
    if not endpoint or "://" in endpoint:
        raise InvalidOptionError("--plaintext goes with --endpoint host:port")
    return f"http://{endpoint}"


def _range(block_range: str | None, start: str, stop: str) -> tuple[int | None, int | str | None]:
    """Read START:STOP; either may be left out. Flags say the same."""
    if block_range is not None:
        begin, colon, end = block_range.partition(":")
        if not colon or (start or stop):
            raise InvalidOptionError("a range is START:STOP, or two flags", got=repr(block_range))
        start, stop = begin, end
    for number in (start.removeprefix("-"), stop.removeprefix("+")):
        if number and not number.isdecimal():
            raise InvalidOptionError("a block is a number", got=repr(number))
    ends: int | str | None = stop if stop.startswith("+") else int(stop) if stop else None
    return int(start) if start else None, ends or None


def _flush(blocks: int, rows: int) -> Flush:
    return Flush(blocks=blocks or None, rows=rows or None)


def _read_ca(path: str) -> bytes | None:
    try:
        return Path(path).read_bytes() if path else None
    except OSError as error:
        raise InvalidOptionError("--ca-file cannot be read", got=path, reason=error) from None


def _headers(texts: list[str] | None) -> dict[str, str]:
    headers = {}
    for text in texts or ():
        name, colon, value = text.partition(":")
        if not colon or not name.strip():
            raise InvalidOptionError("--header takes name:value")  # the value may be a secret
        headers[name.strip().lower()] = value.strip()
    return headers
