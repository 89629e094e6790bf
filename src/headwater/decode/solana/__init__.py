"""Outputs of Solana: instructions, Anchor events and raw tables.

    solana.instructions("spl_token.transfer", range=300_000_000)
    solana.instructions("swap", program="whirL…", idl="whirlpool.json", accounts={"pool": "Czf…"})
    solana.events("Swapped", program="whirL…", idl="whirlpool.json", source="cpi")
    solana.token_balances(post_mint=["EPjF…"])

Block numbers are slots, which have gaps. All of these are values: made on the driver, pickled to
executors, never changed. Decoding is a pure function of the lines, so a retried task gives the same
rows. Raw tables raise `QueryError` if a field or filter is not known, or a value of the wrong kind.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal, Unpack

from headwater.core import Ranges, parse_ranges
from headwater.decode.columns.field_columns import check_decimals
from headwater.decode.columns.malformed import OnError, check_on_error
from headwater.decode.solana.borsh import is_wide
from headwater.decode.solana.builtin_programs import PROGRAMS, SYSTEM, TOKEN, TOKEN_2022
from headwater.decode.solana.data_layout import DataLayout, load_idl, parse_layout
from headwater.decode.solana.instructions import (
    INSTRUCTION_FIELDS,
    LOG_FIELDS,
    AnchorEventsOutput,
    InstructionsOutput,
    layout_columns,
)
from headwater.decode.tables.raw_table import Fields, TableOutput, make_table
from headwater.errors import InvalidOptionError, LayoutError, ParameterError
from headwater.query import Query, SolanaQuery
from headwater.query.networks.solana import (
    SolanaBalances,
    SolanaInstructions,
    SolanaLogs,
    SolanaRewards,
    SolanaTokenBalances,
    SolanaTransactions,
)

__all__ = [
    "SYSTEM",
    "TOKEN",
    "TOKEN_2022",
    "AnchorEventsOutput",
    "InstructionsOutput",
    "TableOutput",
    "balances",
    "blocks",
    "events",
    "instructions",
    "instructions_raw",
    "logs",
    "rewards",
    "token_balances",
    "transactions",
]

IdlSource = str | Path | Mapping[str, object]

_SELF_CALL = bytes.fromhex("e445a52e51cb9a1d")  # what Anchor's events by self-call begin with
_FILTERED_ACCOUNTS = 16


def instructions(
    instruction: str | None = None,
    *,
    program: str | Iterable[str] | None = None,
    idl: IdlSource | None = None,
    layouts: Mapping[str, object] | None = None,
    accounts: Mapping[str, object] | None = None,
    committed_only: bool = True,
    range: Ranges = None,
    on_error: OnError = "raise",
    decimals: Iterable[str] = (),
) -> InstructionsOutput:
    """Return the output that holds one instruction as a table, top-level and inner alike.

    Args:
        instruction: its name in the IDL or the layouts (may be left out if there is only one), or a
            built-in name such as "spl_token.transfer", "token_2022.mint_to", "system.transfer".
        program: one program or several of one interface; the IDL's or the built-in one if None.
        idl: an Anchor IDL of either format: a path, JSON, or its parsed form.
        layouts: plain layouts by name; `data_layout.parse_layout` shows one.
        accounts: accounts to keep, by name: `{"mint": "…"}` or `{"mint": ["…", "…"]}`.
        committed_only: whether to leave out what failed transactions did.
        range: the slots to read, as `headwater.core.parse_ranges` understands them.
        on_error: what to do with an instruction that has the discriminator but not the content:
            "raise", "skip", or a function of the error, which leaves out what it does not raise
            for. It runs where rows are decoded, on executors too.
        decimals: arguments wider than 64 bits to deliver as decimal(38, 0) instead of text.

    Raises:
        LayoutError: the IDL or layout cannot be understood, or has no such instruction.
        ParameterError: `accounts` or `decimals` name something that cannot serve.
        QueryError: a program or account is no public key.
        InvalidRangeError: the range cannot be understood.
        InvalidOptionError: another option is of the wrong kind.
    """
    _check_options(on_error, committed_only)
    layout, default = _find_instruction(instruction, idl, layouts)
    asked = _check_decimals(layout, decimals)
    layout_columns(layout, INSTRUCTION_FIELDS)
    width, value = layout.filter
    keys: dict[str, object] = {"program_id": _programs(program, default), width: [value]}
    keys.update(_account_filters(layout, accounts or {}))
    if committed_only:
        keys["is_committed"] = True
    return InstructionsOutput(
        layout, _instruction_query(keys), parse_ranges(range), on_error, asked
    )


def events(
    event: str | None = None,
    *,
    program: str | Iterable[str] | None = None,
    idl: IdlSource | None = None,
    layouts: Mapping[str, object] | None = None,
    source: Literal["logs", "cpi"] = "logs",
    committed_only: bool = True,
    range: Ranges = None,
    on_error: OnError = "raise",
    decimals: Iterable[str] = (),
) -> AnchorEventsOutput | InstructionsOutput:
    """Return the output that holds one Anchor event as a table.

    Args:
        event: its name in the IDL or the layouts; may be left out if there is only one.
        program: the program that emits it; the IDL's if None.
        idl: an Anchor IDL of either format: a path, JSON, or its parsed form.
        layouts: plain layouts by name, without accounts.
        source: "logs" for `emit!`, "cpi" for `emit_cpi!`, by which a program calls itself.
        committed_only: whether to leave out what failed transactions did.
        range: the slots to read.
        on_error: what to do with an event that has the discriminator but not the content:
            "raise", "skip", or a function of the error, which leaves out what it does not raise
            for. It runs where rows are decoded, on executors too.
        decimals: fields wider than 64 bits to deliver as decimal(38, 0) instead of text.

    Raises:
        LayoutError: the IDL or layout cannot be understood, or has no such event.
        ParameterError: `decimals` names a field that cannot serve.
        QueryError: a program is no public key.
        InvalidRangeError: the range cannot be understood.
        InvalidOptionError: another option is of the wrong kind.
    """
    _check_options(on_error, committed_only)
    if source not in ("logs", "cpi"):
        raise InvalidOptionError("source is 'logs' or 'cpi'", got=repr(source))
    layout, default = _find_event(event, idl, layouts)
    asked, ranges = _check_decimals(layout, decimals), parse_ranges(range)
    programs = _programs(program, default)
    if source == "logs":
        layout_columns(layout, LOG_FIELDS)
        query = SolanaQuery().add_fields(
            log=["transaction_index", "log_index", "instruction_address", "program_id", "kind",
                 "message"],
            transaction=["transaction_index", "signatures", "err"],
        )  # fmt: skip
        wanted = query.add_logs(program_id=programs, kind=["data"], transaction=True)
        return AnchorEventsOutput(
            layout, wanted, ranges, on_error, asked, committed_only=committed_only
        )
    layout_columns(layout, INSTRUCTION_FIELDS)
    layout = replace(layout, discriminator=_SELF_CALL + layout.discriminator)
    keys: dict[str, object] = {"program_id": programs, "d8": [f"0x{_SELF_CALL.hex()}"]}
    if committed_only:
        keys["is_committed"] = True
    return InstructionsOutput(
        layout, _instruction_query(keys), ranges, on_error, asked, what="an event"
    )


# --- raw tables -----------------------------------------------------------------------------------


def blocks(*, fields: Fields = None, range: Ranges = None) -> TableOutput:
    """Return the table of all blocks. docs/schema.md lists the fields and their types."""
    return make_table(SolanaQuery, "blocks", fields, {}, range)


def transactions(
    *, fields: Fields = None, range: Ranges = None, **filters: Unpack[SolanaTransactions]
) -> TableOutput:
    """Return the table of transactions, failed ones too, that match `fee_payer`."""
    return make_table(SolanaQuery, "transactions", fields, filters, range)


def instructions_raw(
    *, fields: Fields = None, range: Ranges = None, **filters: Unpack[SolanaInstructions]
) -> TableOutput:
    """Return the table of instructions, not decoded, that match the filters of `SolanaQuery`."""
    return make_table(SolanaQuery, "instructions_raw", fields, filters, range)


def logs(
    *, fields: Fields = None, range: Ranges = None, **filters: Unpack[SolanaLogs]
) -> TableOutput:
    """Return the table of log messages that match the filters of `SolanaQuery.add_logs`."""
    return make_table(SolanaQuery, "logs", fields, filters, range)


def balances(
    *, fields: Fields = None, range: Ranges = None, **filters: Unpack[SolanaBalances]
) -> TableOutput:
    """Return the table of changes of SOL balances that match `account`."""
    return make_table(SolanaQuery, "balances", fields, filters, range)


def token_balances(
    *, fields: Fields = None, range: Ranges = None, **filters: Unpack[SolanaTokenBalances]
) -> TableOutput:
    """Return the table of changes of token balances that match the filters."""
    return make_table(SolanaQuery, "token_balances", fields, filters, range)


def rewards(
    *, fields: Fields = None, range: Ranges = None, **filters: Unpack[SolanaRewards]
) -> TableOutput:
    """Return the table of rewards that match `pubkey`."""
    return make_table(SolanaQuery, "rewards", fields, filters, range)


# --- checks ---------------------------------------------------------------------------------------


def _check_options(on_error: object, committed_only: object) -> None:
    check_on_error(on_error)
    if not isinstance(committed_only, bool):
        raise InvalidOptionError("committed_only is True or False", got=repr(committed_only))


def _find_instruction(
    name: str | None, idl: IdlSource | None, layouts: Mapping[str, object] | None
) -> tuple[DataLayout, str | None]:
    """Return the layout, and the program that it is of as far as is known."""
    if idl is not None and layouts is None:
        loaded = load_idl(idl)
        return loaded.instruction(_only(name, loaded.instructions())), loaded.address
    if layouts is not None and idl is None:
        return _layout(name, layouts), None
    if idl is not None:
        raise LayoutError("give either an IDL or layouts")
    known = {
        f"{title}.{instruction}": (layout, address)
        for title, (address, contents) in PROGRAMS.items()
        for instruction, layout in contents.items()
    }
    if name not in known:
        raise LayoutError(f"there is no built-in instruction {name!r}", valid=", ".join(known))
    return known[name]


def _find_event(
    name: str | None, idl: IdlSource | None, layouts: Mapping[str, object] | None
) -> tuple[DataLayout, str | None]:
    if idl is not None and layouts is None:
        loaded = load_idl(idl)
        return loaded.event(_only(name, loaded.events())), loaded.address
    if layouts is not None and idl is None:
        layout = _layout(name, layouts)
        if layout.accounts:
            raise LayoutError(f"event {layout.name!r} has no accounts")
        return layout, None
    raise LayoutError("give either an IDL or layouts")


def _layout(name: str | None, layouts: Mapping[str, object]) -> DataLayout:
    chosen = _only(name, list(layouts))
    if chosen not in layouts:
        raise LayoutError(f"there is no layout {chosen!r}", valid=", ".join(layouts))
    return parse_layout(chosen, layouts[chosen])


def _only(name: str | None, names: list[str]) -> str:
    if name is None and len(names) == 1:
        return names[0]
    if name is None:
        raise LayoutError("name one of them; a table holds one", valid=", ".join(names))
    return name


def _programs(program: str | Iterable[str] | None, default: str | None) -> list[str]:
    programs = default if program is None else program
    if programs is None:
        raise LayoutError("the program is not known; give program=")
    return [programs] if isinstance(programs, str) else list(programs)


def _account_filters(layout: DataLayout, accounts: Mapping[str, object]) -> dict[str, object]:
    places = {account.name: at for at, account in enumerate(layout.accounts)}
    filters: dict[str, object] = {}
    for name, value in accounts.items():
        at = places.get(name, _FILTERED_ACCOUNTS)
        if at >= _FILTERED_ACCOUNTS:
            able = ", ".join(list(places)[:_FILTERED_ACCOUNTS]) or "none"
            raise ParameterError(
                f"no filter is possible on {name!r}; these accounts can be filtered: {able}"
            )
        filters[f"a{at}"] = [value] if isinstance(value, str) else value
    return filters


def _check_decimals(layout: DataLayout, decimals: Iterable[str]) -> frozenset[str]:
    able = {member.name for member in layout.args.members if is_wide(member.type)}
    return check_decimals(decimals, able, f"{layout.name} these")


def _instruction_query(keys: Mapping[str, object]) -> Query:
    query = SolanaQuery().add_fields(
        instruction=["transaction_index", "instruction_address", "program_id", "accounts", "data",
                     "is_committed"],
        transaction=["transaction_index", "signatures"],
    )  # fmt: skip
    return query.add_filter("instructions", **keys, transaction=True)
