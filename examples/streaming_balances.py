"""Balances kept by Structured Streaming through three forks, with a plot of what it held."""

import json
from itertools import pairwise
from tempfile import mkdtemp

from matplotlib.figure import Figure
from pyspark.sql import functions as F  # noqa: N812

from headwater.spark import local_session, register
from headwater.spark.streaming import retractable
from headwater.testing import ContentSettings, simulated_portal

spark = local_session("balances")
register(spark)
folder = mkdtemp()
FITS = "length(value) <= 22"  # what a decimal of Spark holds, with room for sums; and a plot
held, seen = {}, []  # balances by owner; the same after each block, with the block's cursor


def keep(rows, batch_id):
    held.update({row["owner"]: int(row["amount"]) for row in rows.collect()})


def follow(query):
    query.processAllAvailable()
    end = json.loads(query.lastProgress["sources"][0]["endOffset"])
    seen.append((end["number"], end["hash"], dict(held)))


content = ContentSettings(accounts=4, tokens=2, transfers_per_transaction=1)
with simulated_portal(seed=7, blocks=40, content=content) as portal:
    token = portal.chain.population.tokens[0]
    options = {"portal": portal.url, "event": "erc20.Transfer", "contracts": token}
    source = spark.readStream.format("headwater").options(**options, journal=f"{folder}/journal")
    changes = source.load().where(FITS)
    amount = F.col("value").cast("decimal(38,0)")
    moves = changes.select("_sign", F.explode(F.array(
        F.struct(F.col("to").alias("owner"), amount.alias("amount")),
        F.struct(F.col("from").alias("owner"), (-amount).alias("amount")))).alias("m"))  # fmt: skip
    balances = moves.groupBy("m.owner").agg(retractable.sum("m.amount").alias("amount"))
    query = (balances.writeStream.outputMode("update").foreachBatch(keep)
             .option("checkpointLocation", f"{folder}/checkpoint").start())  # fmt: skip
    for depth in (2, 3, 4):
        for _ in range(5):
            follow(query)
            portal.extend(1)
        follow(query)
        portal.fork(depth)
    follow(query)
    query.stop()
    canonical = {block.hash for block in portal.chain.canonical()}
    portal.finalize(portal.chain.head.number)  # so that the batch source reads the whole chain
    truth = spark.read.format("headwater").options(**options).load()
    expected = {}
    for row in truth.where(FITS).collect():
        for owner, sign in ((row["to"], 1), (row["from"], -1)):
            expected[owner] = expected.get(owner, 0) + sign * int(row["value"])
    assert held == {**dict.fromkeys(held, 0), **expected}
    print(len(expected), "balances equal the chain after", len(portal.chain.forks), "forks")

figure = Figure(figsize=(9, 4.5), layout="constrained")
plot = figure.subplots()
kept = [point for point in seen if point[1] in canonical]
swing = {one: max(a := [now.get(one, 0) for *_, now in seen]) - min(a) for one in held}
for color, owner in enumerate(sorted(swing, key=lambda one: -swing[one])[:5]):

    def draw(points, owner=owner, color=f"C{color}", **style):
        numbers, _, now = zip(*points, strict=True)
        amounts = [one.get(owner, 0) / 10**18 for one in now]
        plot.plot(numbers, amounts, color=color, marker=".", **style)

    draw(kept, label=owner[:8])
    for before, after in pairwise(kept):
        first, last = seen.index(before), seen.index(after)
        draw(seen[first:last], linestyle=":", alpha=0.6)  # what a fork took back
for before, after in pairwise(kept):
    if lost := [point[0] for point in seen[seen.index(before) + 1 : seen.index(after)]]:
        plot.axvspan(min(lost) - 0.5, max(lost) + 0.5, color="0.93", zorder=0)
        middle = (min(lost) + max(lost)) / 2
        text = f"fork\n{len(lost)} blocks"
        plot.text(
            middle, 1.01, text, ha="center", va="bottom", transform=plot.get_xaxis_transform()
        )
plot.plot([], [], color="0.4", linestyle=":", marker=".", label="taken back")
plot.set(xlabel="newest block", ylabel="tokens")
plot.set_title("Balances in Spark, block by block", loc="left", pad=32)
plot.xaxis.get_major_locator().set_params(integer=True)
plot.grid(axis="y", alpha=0.3)
plot.spines[["top", "right"]].set_visible(False)
plot.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
figure.savefig("streaming_balances.png", dpi=120)
