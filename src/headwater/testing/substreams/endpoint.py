"""A Substreams endpoint over real gRPC, on a simulated chain: `simulated_endpoint(seed=7)`.

    with simulated_endpoint(seed=7, blocks=100) as endpoint:
        ...                     # substreams_stream(endpoint=endpoint.url, package=endpoint.package)
        endpoint.chain.fork(3)  # three blocks are replaced: the stream gets an undo signal

It behaves as the public ones do: a session that resumes after an orphaned block begins with an undo
signal; blocks without output may be left out; v4 bundles blocks; a cursor of a block that is not
final names the block before the last final one. What goes wrong is said by faults.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event
from typing import Any

import grpc

from headwater.core import BlockCursor
from headwater.errors import SinkCursorError
from headwater.substreams.cursor_text import CursorText, read_cursor, write_cursor
from headwater.substreams.messages import CLASSES, V2, V4, VERSIONS
from headwater.testing.chain.live import LiveChain
from headwater.testing.chain.tree import ChainSim, SimBlock
from headwater.testing.substreams import faults
from headwater.testing.substreams.faults import SessionFault, SessionFaults
from headwater.testing.substreams.modules import DB_OUT, SimModule

HOST = "127.0.0.1"
POLL_S = 0.005
_NEW, _FINAL = 1, 17


@dataclass(frozen=True, slots=True)
class SessionSeen:
    """The request of one session."""

    version: int
    cursor: str
    start: int
    stop: int
    module: str
    final_only: bool
    production: bool
    params: dict[str, str]
    network: str
    package_bytes: int
    headers: dict[str, str] = field(repr=False)


class SessionEnd(Exception):  # noqa: N818 - how a session ends, not a defect
    """A session ends with a status."""

    def __init__(self, status: str, words: str = "") -> None:
        super().__init__(status, words)
        self.status, self.words = status, words


class SimEndpoint:
    """The endpoint's answers, without a socket: `session` yields serialized messages.

    `bundle` is how many blocks a v4 message holds at most. With `skip_empty` blocks without output
    are not sent. `progress_s` is how often it says so while there is nothing to send.
    """

    def __init__(
        self,
        chain: ChainSim,
        modules: Sequence[SimModule] = (DB_OUT,),
        *,
        bundle: int = 100,
        skip_empty: bool = False,
        progress_s: float = 0.05,
        api_key: str | None = None,
    ) -> None:
        self.chain = chain
        self.modules = {module.name: module for module in modules}
        self.bundle = bundle
        self.skip_empty = skip_empty
        self.progress_s = progress_s
        self.faults = SessionFaults()
        self.sessions: list[SessionSeen] = []
        self.stopping = Event()
        self._api_key = api_key

    def session(
        self, version: int, request: bytes, headers: dict[str, str], left: Event
    ) -> Iterator[bytes]:
        """Yield the messages of one session until it ends, or the client has `left`.

        Raises:
            SessionEnd: it ends with a status.
        """
        asked = self._read(version, request, headers)
        self.sessions.append(asked)
        sent = headers.get("x-api-key", "")
        if self._api_key is not None and not hmac.compare_digest(sent, self._api_key):
            raise SessionEnd("UNAUTHENTICATED", f"the key {sent!r} is not known")
        if asked.module not in self.modules:
            raise SessionEnd("INVALID_ARGUMENT", f"module {asked.module!r} is not there")
        yield from _Session(self, asked, self.faults.next(), left).messages()

    def _read(self, version: int, request: bytes, headers: dict[str, str]) -> SessionSeen:
        said = CLASSES["v2.Request" if version == V2 else "v3.Request"].FromString(request)
        newer = version != V2
        return SessionSeen(
            version,
            said.start_cursor,
            said.start_block_num,
            said.stop_block_num,
            said.output_module,
            said.final_blocks_only,
            said.production_mode,
            {entry.key: entry.value for entry in said.params} if newer else {},
            said.network if newer else "",
            len(said.package if newer else said.modules),
            headers,
        )


class _Session:
    """One session: where it stands on which branch, and what it sends next."""

    def __init__(
        self, endpoint: SimEndpoint, asked: SessionSeen, fault: SessionFault | None, left: Event
    ) -> None:
        self._endpoint = endpoint
        self._chain = endpoint.chain
        self._asked = asked
        self._module = endpoint.modules[asked.module]
        self._fault = fault
        self._left = left
        self._sent = 0
        self._at: SimBlock | None = None
        self._response = CLASSES["v4.Response" if asked.version == V4 else "v2.Response"]

    def messages(self) -> Iterator[bytes]:
        with self._chain.lock:
            first, undo = self._resolve()
            chain_head = self._chain.head.number
        if self._fault is not None and self._fault.after < 0:
            yield from self._strike()
        yield self._say(
            session={
                "trace_id": "sim",
                "resolved_start_block": first,
                "linear_handoff_block": first,
                "max_parallel_workers": 1,
                "chain_head": chain_head,
            }
        )
        yield self._progress()
        if undo is not None:
            yield from self._data(undo)
        idle = 0.0
        while not self._left.is_set() and not self._endpoint.stopping.is_set():
            yield from self._strike()
            with self._chain.lock:
                data, done = self._next(first)
            if data is not None:
                idle = 0.0
                yield from self._data(data)
            elif done:
                return
            else:
                self._left.wait(POLL_S)
                idle += POLL_S
                if idle >= self._endpoint.progress_s:
                    idle = 0.0
                    yield self._progress()

    # --- where it stands --------------------------------------------------------------------------

    def _resolve(self) -> tuple[int, dict[str, Any] | None]:
        """Return the first block to send, and the undo signal to begin with, if there is one."""
        asked, chain = self._asked, self._chain
        if not asked.cursor:
            first = asked.start if asked.start >= 0 else max(0, chain.head.number + asked.start)
            self._check_range(first or chain.start_block)
            return first, None
        step, number, block_hash, lib_number = _read_cursor(asked.cursor)
        self._check_range(number + 1)
        block = chain.find(block_hash)
        if step == _FINAL:
            self._at = block
            return number + 1, None
        if block is None:  # it cannot be located
            last = chain.at_or_below(lib_number)
            assert last is not None, "finality lies on the chain"
        elif chain.is_ancestor(block.hash, chain.head.hash):
            self._at = block
            return number + 1, None
        else:
            last = self._junction(block)
        self._at = last
        return last.number + 1, self._undo(last)

    def _check_range(self, first: int) -> None:
        if self._asked.stop and first >= self._asked.stop:
            raise SessionEnd(
                "INVALID_ARGUMENT", f"start block {first} is not before {self._asked.stop}"
            )

    def _junction(self, block: SimBlock) -> SimBlock:
        """Return the newest canonical block of the branch that ends in this block."""
        while not self._chain.is_ancestor(block.hash, self._chain.head.hash):
            block = self._chain.block(block.parent_hash)
        return block

    def _next(self, first: int) -> tuple[dict[str, Any] | None, bool]:
        """Return what to send next, if there is something, and whether all is sent."""
        chain, asked, at = self._chain, self._asked, self._at
        if at is not None and not chain.is_ancestor(at.hash, chain.head.hash):
            self._at = self._junction(at)
            return self._undo(self._at), False
        last = chain.head.number
        if asked.final_only:
            last = -1 if chain.finalized is None else chain.finalized.number
        reaches_stop = bool(asked.stop) and last >= asked.stop - 1
        last = min(last, asked.stop - 1) if asked.stop else last
        begin = first if at is None else at.number + 1
        items: list[dict[str, Any]] = []
        most = self._endpoint.bundle if asked.version == V4 else 1
        for block in chain.canonical(begin, min(last, begin + 4 * self._endpoint.bundle)):
            self._at = block
            value = self._module.make(block)
            if value or not self._endpoint.skip_empty:
                items.append(self._item(block, value))
            if len(items) == most:
                break
        if not items:
            moved = self._at is not at
            return None, reaches_stop and not moved
        if asked.version == V4:
            return {"block_scoped_datas": {"items": items}}, False
        return {"block_scoped_data": items[0]}, False

    # --- what it says -----------------------------------------------------------------------------

    def _item(self, block: SimBlock, value: bytes) -> dict[str, Any]:
        final = block.number if self._asked.final_only else self._final_number()
        item: dict[str, Any] = {
            "clock": {
                "id": block.hash.removeprefix("0x"),
                "number": block.number,
                "timestamp": {"seconds": block.timestamp},
            },
            "cursor": self._cursor(block),
            "final_block_height": final,
            "output": {
                "name": self._module.name,
                "map_output": {"type_url": self._module.type_url, "value": value},
            },
        }
        if isinstance(self._fault, faults.GrowsHuge) and self._sent == self._fault.after:
            item["attestation"] = "x" * self._fault.size
        return item

    def _final_number(self) -> int:
        final = self._chain.finalized
        number = self._chain.start_block if final is None else final.number
        if isinstance(self._fault, faults.LowersFinality) and self._sent >= self._fault.after:
            return max(0, number - 10)
        return number

    def _undo(self, last: SimBlock) -> dict[str, Any]:
        return _undo_to(last.number, last.hash, self._cursor(last))

    def _cursor(self, block: SimBlock) -> str:
        final, head = self._chain.finalized, self._chain.head
        first = self._chain.canonical(self._chain.start_block, self._chain.start_block)[0]
        if final is not None and block.number <= final.number:
            return write_cursor(CursorText(_FINAL, _at(block), _at(head), _at(block)))
        before = None if final is None else self._chain.at_or_below(final.number - 1)
        return write_cursor(CursorText(_NEW, _at(block), _at(head), _at(before or first)))

    def _data(self, data: dict[str, Any]) -> Iterator[bytes]:
        message = self._say(**data)
        yield message
        again = isinstance(self._fault, faults.RepeatsUndo) and "block_undo_signal" in data
        again |= isinstance(self._fault, faults.RepeatsBlocks) and self._sent == self._fault.after
        if again:
            yield message
        self._sent += 1

    def _say(self, **content: Any) -> bytes:
        return bytes(self._response(**content).SerializeToString())

    def _progress(self) -> bytes:
        reached = 0 if self._at is None else self._at.number
        stage = {"modules": [self._module.name]}
        if reached:
            stage["completed_ranges"] = [{"start_block": 0, "end_block": reached}]  # type: ignore[list-item]
        return self._say(
            progress={
                "running_jobs": [{"stage": 0, "start_block": 0, "stop_block": 10}],
                "stages": [stage],
                "processed_bytes": {"total_bytes_read": 100 * reached},
                "processed_blocks": reached,
            }
        )

    def _strike(self) -> Iterator[bytes]:
        """Let the fault strike, once it is time."""
        fault = self._fault
        if fault is None or self._sent < fault.after:
            return
        if isinstance(fault, faults.EndsWith):
            raise SessionEnd(fault.status, fault.words)
        if isinstance(fault, faults.FallsSilent):
            while not self._left.wait(0.05) and not self._endpoint.stopping.is_set():
                pass
        elif isinstance(fault, faults.ModuleFails):
            said = {"module": fault.module, "reason": fault.reason, "logs": fault.logs}
            yield self._say(fatal_error=said)
            raise SessionEnd("INVALID_ARGUMENT", fault.reason)
        elif isinstance(fault, faults.SendsGarbage):
            self._fault = None
            yield fault.data
        elif isinstance(fault, faults.UndoesTo):
            self._fault = None
            block_hash = fault.hash
            at = BlockCursor(fault.number, block_hash)
            text = write_cursor(CursorText(_NEW, at, at, at))
            yield self._say(**_undo_to(fault.number, block_hash, text))


class EndpointServer:
    """A simulated endpoint behind a port. With `tls` (key and certificate, PEM) it speaks TLS."""

    def __init__(
        self,
        endpoint: SimEndpoint,
        *,
        port: int = 0,
        versions: Sequence[int] = VERSIONS,
        tls: tuple[bytes, bytes] | None = None,
        live: LiveChain | None = None,
    ) -> None:
        self.endpoint = endpoint
        self.live = live
        self._server = grpc.server(
            ThreadPoolExecutor(64, "headwater-endpoint"),
            options=[
                ("grpc.so_reuseport", 0),
                ("grpc.max_send_message_length", -1),
                ("grpc.max_receive_message_length", -1),
            ],
            compression=grpc.Compression.Gzip,
        )
        for version in versions:
            self._server.add_generic_rpc_handlers((self._handler(version),))
        if tls is None:
            bound = self._server.add_insecure_port(f"{HOST}:{port}")
            self.url = f"http://{HOST}:{bound}"
        else:
            credentials = grpc.ssl_server_credentials([tls])
            bound = self._server.add_secure_port(f"{HOST}:{port}", credentials)
            self.url = f"https://localhost:{bound}"
        self._server.start()
        if live is not None:
            live.start()

    @property
    def chain(self) -> ChainSim:
        """The chain behind the endpoint."""
        return self.endpoint.chain

    @property
    def faults(self) -> SessionFaults:
        """What goes wrong."""
        return self.endpoint.faults

    @property
    def sessions(self) -> list[SessionSeen]:
        """What was asked, session by session."""
        return self.endpoint.sessions

    @property
    def package(self) -> bytes:
        """A package of the first module."""
        return next(iter(self.endpoint.modules.values())).package()

    def close(self) -> None:
        """End every session and free the port."""
        if self.live is not None:
            self.live.stop()
        self.endpoint.stopping.set()
        self._server.stop(grace=0.2).wait()

    def _handler(self, version: int) -> Any:
        def blocks(request: bytes, context: Any) -> Iterator[bytes]:
            left = Event()
            context.add_callback(left.set)
            headers = {key: str(value) for key, value in context.invocation_metadata()}
            try:
                yield from self.endpoint.session(version, request, headers, left)
            except SessionEnd as end:
                if end.status == "OK":
                    return
                context.abort(getattr(grpc.StatusCode, end.status), end.words)

        return grpc.method_handlers_generic_handler(
            f"sf.substreams.rpc.v{version}.Stream",
            {"Blocks": grpc.unary_stream_rpc_method_handler(blocks)},
        )


@contextmanager
def simulated_endpoint(
    seed: int = 0,
    *,
    blocks: int = 100,
    finality_depth: int = 20,
    chain: ChainSim | None = None,
    modules: Sequence[SimModule] = (DB_OUT,),
    port: int = 0,
    versions: Sequence[int] = VERSIONS,
    tls: tuple[bytes, bytes] | None = None,
    bundle: int = 100,
    skip_empty: bool = False,
    api_key: str | None = None,
) -> Iterator[EndpointServer]:
    """Serve a simulated endpoint while the block runs.

    Without `chain`, one is made that has `blocks` blocks, final but for the newest
    `finality_depth`.
    """
    if chain is None:
        chain = ChainSim(seed)
        chain.grow(blocks - 1)
        chain.finalize_behind(finality_depth)
    endpoint = SimEndpoint(chain, modules, bundle=bundle, skip_empty=skip_empty, api_key=api_key)
    server = EndpointServer(endpoint, port=port, versions=versions, tls=tls)
    try:
        yield server
    finally:
        server.close()


def _undo_to(number: int, block_hash: str, cursor: str) -> dict[str, Any]:
    block = {"id": block_hash.removeprefix("0x"), "number": number}
    return {"block_undo_signal": {"last_valid_block": block, "last_valid_cursor": cursor}}


def _read_cursor(cursor: str) -> tuple[int, int, str, int]:
    """Return the step, the block's number and hash, and the number of its last final block."""
    try:
        said = read_cursor(cursor)
    except SinkCursorError:
        raise SessionEnd("INVALID_ARGUMENT", "the cursor cannot be read") from None
    return said.step, said.block.number, f"0x{said.block.hash}", said.final.number


def _at(block: SimBlock) -> BlockCursor:
    """Return a block as an endpoint names it."""
    return BlockCursor(block.number, block.hash.removeprefix("0x"))
