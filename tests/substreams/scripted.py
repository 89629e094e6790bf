"""Modules whose outputs a test writes down, the oracle of `DB_OUT`, and a driver of streams."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from random import Random
from typing import Any

from google.protobuf import message_factory

from headwater.changes import TableSchema
from headwater.changes.database_changes import read_database_changes
from headwater.pipeline import Discarded, Event, RolledBack
from headwater.stream import StopRequested
from headwater.stream.substreams import SubstreamsStream, substreams_stream
from headwater.substreams.client import Dialling
from headwater.substreams.descriptors import TypeSet
from headwater.substreams.messages import Message, Progress
from headwater.testing.chain.tree import ChainSim, SimBlock
from headwater.testing.substreams import DB_OUT, EndpointServer, SimModule
from headwater.testing.substreams.modules import changes_file
from tests.change_model import apply_one_by_one

CHANGES = "sf.substreams.sink.database.v1.DatabaseChanges"
FILES = (changes_file(),)
_CLASS = message_factory.GetMessageClass(TypeSet(FILES).descriptor(CHANGES))
CREATE, UPDATE, DELETE = 1, 2, 3
TABLES = [
    TableSchema(
        "transfer", ["id"], {"id": "text", "from": "text", "to": "text", "value": "integer"}
    ),
    TableSchema(
        "holder",
        ["address"],
        {"address": "text", **dict.fromkeys(
            ["balance", "largest", "smallest", "first_block", "last_block"], "integer"
        )},
    ),
    TableSchema("note", ["page", "line"], {"page": "integer", "line": "integer", "body": "text"}),
]  # fmt: skip


def changes(*given: tuple[str, str, int, Mapping[str, object]]) -> bytes:
    """Return a message of changes: table, key, operation, fields."""
    made = _CLASS()
    for table, key, operation, fields in given:
        change = made.table_changes.add(table=table, pk=key, operation=operation)
        for name, value in fields.items():
            change.fields.add(name=name, value=str(value), update_op=1)
    return bytes(made.SerializeToString())


def module(make: Callable[[SimBlock], bytes]) -> SimModule:
    """Return a module of DatabaseChanges."""
    return SimModule("db_out", CHANGES, make, FILES)


def stream_of(server: EndpointServer, **options: Any) -> SubstreamsStream:
    """Return a stream of the endpoint's module."""
    options = {
        "id": "one",
        "dialling": Dialling(idle_s=1.0),
        "endpoint": server.url,
        "package": server.package,
        **options,
    }
    return substreams_stream(**options)


def run(
    stream: SubstreamsStream, target: Any, listen: Callable[[Event], None] = lambda event: None
) -> list[Event]:
    """Run until the end, or until the listener raises `StopRequested`; return the events."""
    heard: list[Event] = []

    def on_event(event: Event) -> None:
        heard.append(event)
        listen(event)

    stream.pipe_to(target, on_event=on_event, progress=False)
    return heard


def stop_at(number: int) -> Callable[[Event], None]:
    """Return a listener that ends the run once a block is committed."""

    def listen(event: Event) -> None:
        if event.state.number >= number:
            raise StopRequested

    return listen


def expected(blocks: Iterable[SimBlock]) -> dict[str, list[dict[str, str]]]:
    """Return what the tables of `DB_OUT` hold after these blocks, worked out one by one."""
    given = [(block.number, value) for block in blocks if (value := DB_OUT.make(block))]
    table = read_database_changes(given, tables=TABLES)
    rows = apply_one_by_one({}, table.to_pylist())
    found: dict[str, list[dict[str, str]]] = {schema.name: [] for schema in TABLES}
    keys = {schema.name: schema.key[0] for schema in TABLES}
    for (name, key), row in rows.items():
        row = row | {column or keys[name]: value for column, value in key}
        found[name].append(dict(sorted(row.items())))
    return {name: sorted(several, key=str) for name, several in found.items()}


def stored(query: Callable[[str], Any]) -> dict[str, list[dict[str, str]]]:
    """Return the same of a database; null columns are left out."""
    found = {}
    for schema in TABLES:
        rows = query(f'SELECT * FROM "{schema.name}"').to_pylist()
        texts = [
            {name: _text(value) for name, value in row.items() if value is not None} for row in rows
        ]
        found[schema.name] = sorted([dict(sorted(row.items())) for row in texts], key=str)
    return found


def _text(value: Any) -> str:
    return value if isinstance(value, str) else str(int(value))


def chain_of(blocks: int, final: int, seed: int = 1) -> ChainSim:
    chain = ChainSim(seed)
    chain.grow(blocks - 1)
    chain.finalize(final)
    return chain


class CrashError(Exception):
    """The process dies between two steps."""


class Weather:
    """Grows, forks and finalizes the chain while a stream runs, and ends the run now and then.

    `hear` is told of messages: a stream that holds back all that there is has no events, so the
    chain grows when an endpoint has had nothing to send for a while.
    """

    def __init__(self, chain: ChainSim, random: Random, blocks: int) -> None:
        self.chain = chain
        self.random = random
        self.blocks = blocks
        self.undone = 0
        self._idle = 0

    def hear(self, message: Message) -> None:
        self._idle = self._idle + 1 if isinstance(message, Progress) else 0
        if self._idle >= 10:
            self._idle = 0
            self.chain.grow(1)

    @property
    def is_over(self) -> bool:
        return self.chain.head.number >= self.blocks

    def __call__(self, event: Event) -> None:
        self.undone += isinstance(event, RolledBack | Discarded)
        random, chain = self.random, self.chain
        if self.is_over:
            raise StopRequested
        match random.randrange(8):
            case 0 | 1 | 2:
                chain.grow(random.randrange(1, 6))
            case 3 | 4:
                final = chain.finalized
                depth = chain.head.number - (0 if final is None else final.number)
                if depth:
                    chain.fork(random.randrange(1, depth + 1), random.randrange(0, 8))
            case 5:
                chain.finalize(max(0, chain.head.number - random.randrange(2, 9)))
            case 6 if random.random() < 0.3:
                raise CrashError
            case _:
                pass
