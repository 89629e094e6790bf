"""The simulator's remote control: JSON in, JSON out, for pipelines in another process.

| route | body |
|---|---|
| GET state | |
| GET ledger | |
| POST extend | `{"count": 1}` |
| POST fork | `{"depth": 1, "length": null, "force": false}` |
| POST finalize | `{"number": 100}` |
| POST replica | `{"index": 0, "follow": "lagging", "behind": 5}`, `{"index": 0, "pin": 3}` … |
| POST faults | `{"fault": "torn-line", "when": {"nth": 2}}`, `{"clear": true}` |
| POST drop | `{"below": 100}`: blocks that the service does not keep any more |
| POST pause | `{"paused": true}` |
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import msgspec

from headwater.errors import HeadwaterError, InvalidOptionError
from headwater.testing.chain.live import LiveChain
from headwater.testing.fault_plan import fault_from_json
from headwater.testing.portal.dataset import PortalSim
from headwater.testing.portal.replicas import Finality, Follow, Replica

Options = dict[str, Any]


@dataclass(frozen=True, slots=True)
class When:
    """The part of a fault's `Rule` that can be written in JSON."""

    nth: int = 1
    times: int | None = 1
    probability: float = 1.0
    route: str | None = None
    from_block: tuple[int | None, int | None] | None = None


def handle_control(
    sim: PortalSim, live: LiveChain | None, method: str, action: str, body: bytes
) -> tuple[int, object]:
    """Carry out one control request; return a status and what to send as JSON."""
    try:
        if method == "GET":
            return _read(sim, live, action)
        if action not in _COMMANDS:
            return 404, {"error": f"POST takes {', '.join(_COMMANDS)}"}
        command, known = _COMMANDS[action]
        options = json.loads(body or b"{}")
        if not isinstance(options, dict):
            raise InvalidOptionError("the body must be a JSON object")
        if action != "faults" and not set(options) <= set(known):
            raise InvalidOptionError(f"{action} takes {', '.join(known)}", got=sorted(options))
        with sim.chain.lock:
            command(sim, live, options)
            return 200, state(sim, live)
    except (HeadwaterError, msgspec.ValidationError, ValueError, TypeError) as error:
        return 400, {"error": str(error)}


def state(sim: PortalSim, live: LiveChain | None = None) -> dict[str, object]:
    """Describe the chain, the replicas and the traffic."""
    chain = sim.chain
    with chain.lock:
        final = chain.finalized
        return {
            "dataset": sim.dataset,
            "network": chain.network.value,
            "start_block": sim.oldest,
            "head": {"number": chain.head.number, "hash": chain.head.hash},
            "finalized": None if final is None else {"number": final.number, "hash": final.hash},
            "forks": [
                {"ancestor": fork.ancestor.number, "depth": fork.depth} for fork in chain.forks
            ],
            "replicas": [str(replica) for replica in sim.replicas],
            "faults": [str(rule.fault) for rule in sim.faults.rules],
            "statuses": {str(code): n for code, n in sorted(sim.ledger.statuses().items())},
            "paused": live is None or live.paused,
        }


def _read(sim: PortalSim, live: LiveChain | None, action: str) -> tuple[int, object]:
    if action == "state":
        return 200, state(sim, live)
    if action == "ledger":
        return 200, sim.ledger.to_json()
    return 404, {"error": "GET takes state, ledger"}


def _extend(sim: PortalSim, live: LiveChain | None, options: Options) -> None:
    sim.chain.grow(options.get("count", 1))


def _fork(sim: PortalSim, live: LiveChain | None, options: Options) -> None:
    force = options.get("force", False)
    sim.chain.fork(options.get("depth", 1), options.get("length"), force=force)


def _finalize(sim: PortalSim, live: LiveChain | None, options: Options) -> None:
    if "number" not in options:
        raise InvalidOptionError("finalize needs a number")
    sim.chain.finalize(options["number"])


def _drop(sim: PortalSim, live: LiveChain | None, options: Options) -> None:
    if type(options.get("below")) is not int:
        raise InvalidOptionError("drop needs the number below which blocks are dropped")
    sim.drop_below(options["below"])


def _replica(sim: PortalSim, live: LiveChain | None, options: Options) -> None:
    replica = sim.replicas[options.get("index", 0)]
    if "follow" in options:
        _move(replica, Follow(options["follow"]), options)
    if "finality" in options:
        replica.report(Finality(options["finality"]), options.get("finality_behind", 0))
    if "pin" in options:
        sim.replicas.pin(replica.index, options["pin"])


def _move(replica: Replica, follow: Follow, options: Options) -> None:
    if follow is Follow.LIVE:
        replica.live()
    elif follow is Follow.LAGGING:
        replica.lag(options.get("behind", 0))
    else:
        replica.freeze(options.get("tip"))


def _faults(sim: PortalSim, live: LiveChain | None, options: Options) -> None:
    if options.pop("clear", False):
        sim.faults.clear()
    if "fault" in options:
        when = msgspec.convert(options.pop("when", {}), When)
        sim.faults.add(fault_from_json(options), **asdict(when))


def _pause(sim: PortalSim, live: LiveChain | None, options: Options) -> None:
    paused = options.get("paused", True)
    if live is None:
        raise InvalidOptionError("this chain does not move by itself")
    if paused:
        live.pause()
    else:
        live.resume()


Command = Callable[[PortalSim, LiveChain | None, Options], None]

_COMMANDS: dict[str, tuple[Command, tuple[str, ...]]] = {
    "extend": (_extend, ("count",)),
    "fork": (_fork, ("depth", "length", "force")),
    "finalize": (_finalize, ("number",)),
    "drop": (_drop, ("below",)),
    "replica": (
        _replica,
        ("index", "follow", "behind", "tip", "finality", "finality_behind", "pin"),
    ),
    "faults": (_faults, ("fault", "when", "clear")),  # and the fault's own options
    "pause": (_pause, ("paused",)),
}
