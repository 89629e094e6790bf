"""Rows of a factory's children, beside a plain list of contracts: what membership costs per log.

`OPENBLAS_NUM_THREADS=1 python benchmarks/bench_factory.py`. Half of the logs are of children, all
have the event's topic, as if a portal had been asked by topic alone. A plain list is looked up in a
hash table that is built for each slice of logs; children lie sorted. Exit code 1 if a log among
fifty thousand children costs more than the limits: beside fifty of them, and beside such a list.
"""

from __future__ import annotations

import platform
import random
import sys
import time
from collections.abc import Callable

import pyarrow as pa

from headwater.core import BlockRange
from headwater.decode import EventsOutput, Output, evm, parse_logs
from headwater.decode.evm.factory import FOUND_FIELDS
from headwater.stream.factory_index import FactoryIndex, factories_of

BLOCKS, LOGS, ROUNDS = 400, 100, 15
LIMIT_FEW, LIMIT_LIST = 2.0, 1.5
EVERYTHING = [BlockRange(0)]
SWAP = "Swap(address indexed sender, uint256 amount0, uint256 amount1, address indexed to)"
CREATED = "PairCreated(address indexed token0, address indexed token1, address pair, uint256 n)"


def address(chance: random.Random) -> str:
    return f"0x{chance.randbytes(20).hex()}"


def make_lines(output: EventsOutput, known: list[str]) -> list[bytes]:
    chance = random.Random(3)
    lines = []
    for number in range(1_000_000, 1_000_000 + BLOCKS):
        logs = ",".join(
            f'{{"logIndex":{at},"transactionIndex":{at // 3},'
            f'"transactionHash":"0x{chance.randbytes(32).hex()}",'
            f'"address":"{chance.choice(known) if at % 2 else address(chance)}",'
            f'"data":"0x{chance.getrandbits(80):064x}{chance.getrandbits(80):064x}",'
            f'"topics":["{output.event.topic0}","0x{"0" * 24}{chance.randbytes(20).hex()}",'
            f'"0x{"0" * 24}{chance.randbytes(20).hex()}"]}}'
            for at in range(LOGS)
        )
        header = f'{{"number":{number},"hash":"0x{chance.randbytes(32).hex()}","timestamp":1}}'
        lines.append(f'{{"header":{header},"logs":[{logs}]}}'.encode())
    return lines


def best(work: Callable[[], object]) -> float:
    times = []
    for _ in range(ROUNDS):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def cost(output: Output, logs: pa.Table) -> float:
    return best(lambda: output.decode({"log": logs}, EVERYTHING))


def of_children(known: list[str], columns: list[str]) -> tuple[FactoryIndex, dict[str, Output]]:
    factory = evm.factory(known[0], CREATED, child="pair", columns=columns)
    outputs: dict[str, Output] = {"swaps": evm.events(SWAP, contracts=factory)}
    index = FactoryIndex(factories_of(outputs.values()), {factory.key: 0})
    places = [range(len(known)), [0] * len(known), [0] * len(known), known]
    fields = [*FOUND_FIELDS, *factory.fields]
    values = [*places, *([str(at) for at in range(len(known))] for _ in factory.fields)]
    found = [pa.array(one, field.type) for one, field in zip(values, fields, strict=True)]
    index.add(factory.key, pa.table(found, schema=pa.schema(fields)), 1_000_000)
    return index, outputs


def main() -> int:
    pa.set_cpu_count(1)
    chance = random.Random(1)
    everybody = [address(chance) for _ in range(400_000)]
    print(f"{BLOCKS} blocks of {LOGS} logs, Python {platform.python_version()}, "
          f"{platform.machine()}, CPU time of one core, best of {ROUNDS}\n")  # fmt: skip
    print("| contracts | ns per log | of a single block, µs | beside a list of 50 |")
    print("|---|---|---|---|")
    costs: dict[tuple[str, int], float] = {}
    for count in (50, 5_000, 50_000, 400_000):
        known = everybody[:count]
        plain = evm.events(SWAP, contracts=known)
        logs = parse_logs(make_lines(plain, known))
        rivals: list[tuple[str, Output]] = [("a list of", plain)]
        for columns in ([], ["token0", "n"]):
            index, outputs = of_children(known, columns)
            bound = index.bind(outputs, 2_000_000)["swaps"]
            rivals.append((f"children{' with two columns' if columns else ''},", bound))
        rows = {name: one.decode({"log": logs}, EVERYTHING).table.num_rows for name, one in rivals}
        assert set(rows.values()) == {BLOCKS * LOGS // 2}, rows
        for name, one in rivals:
            spent, single = cost(one, logs), cost(one, logs.slice(0, LOGS))
            costs[name, count] = spent
            per_log, ratio = 1e9 * spent / logs.num_rows, spent / costs["a list of", 50]
            print(f"| {name} {count:,} | {per_log:,.0f} | {1e6 * single:,.0f} | {ratio:.2f}x |")
    many = costs["children,", 50_000]
    few, listed = many / costs["children,", 50], many / costs["a list of", 50_000]
    print(
        f"\nfifty thousand children cost a log {few:.2f} times what fifty cost (limit {LIMIT_FEW}),"
    )
    print(f"and {listed:.2f} times a list of fifty thousand (limit {LIMIT_LIST})")
    return 0 if few <= LIMIT_FEW and listed <= LIMIT_LIST else 1


if __name__ == "__main__":
    sys.exit(main())
