"""Balances kept by Structured Streaming through three forks, with a plot of what it held."""

from tempfile import mkdtemp

from matplotlib.figure import Figure
from pyspark.sql import functions as F  # noqa: N812

from headwater.spark import local_session, register
from headwater.spark.streaming import retractable
from headwater.testing import simulated_portal

spark = local_session("balances")
register(spark)
folder = mkdtemp()
FITS = "length(value) <= 30"  # what a decimal of Spark holds, with room for sums
held, seen, forks = {}, [], []


def keep(rows, batch_id):
    for row in rows.collect():
        held[row["owner"]] = int(row["amount"])
    seen.append(dict(held))


with simulated_portal(seed=7, blocks=60) as portal:
    options = {"portal": portal.url, "event": "erc20.Transfer", "journal": f"{folder}/journal"}
    changes = spark.readStream.format("headwater").options(**options).load().where(FITS)
    amount = F.col("value").cast("decimal(38,0)")
    moves = changes.select("_sign", F.explode(F.array(
        F.struct(F.col("to").alias("owner"), amount.alias("amount")),
        F.struct(F.col("from").alias("owner"), (-amount).alias("amount")))).alias("m"))  # fmt: skip
    balances = moves.groupBy("m.owner").agg(retractable.sum("m.amount").alias("amount"))
    query = (balances.writeStream.outputMode("update").foreachBatch(keep)
             .option("checkpointLocation", f"{folder}/checkpoint").start())  # fmt: skip
    for depth in (2, 4, 6):
        query.processAllAvailable()
        portal.extend(3)
        query.processAllAvailable()
        portal.fork(depth)
        forks.append(len(seen))
    query.processAllAvailable()
    query.stop()
    portal.finalize(portal.chain.head.number)  # so that the batch source reads the whole chain
    truth = spark.read.format("headwater").options(portal=portal.url, event="erc20.Transfer").load()
    expected = {}
    for row in truth.where(FITS).collect():
        for owner, sign in ((row["to"], 1), (row["from"], -1)):
            expected[owner] = expected.get(owner, 0) + sign * int(row["value"])
    assert held == {**dict.fromkeys(held, 0), **expected}
    print(len(expected), "balances equal the chain after", len(portal.chain.forks), "forks")

figure = Figure(figsize=(7, 4))
plot = figure.subplots()
for owner in sorted(held, key=lambda one: -len({now.get(one, 0) for now in seen}))[:4]:
    plot.step(range(len(seen)), [now.get(owner, 0) for now in seen], where="post", label=owner[:8])
for fork in forks:
    plot.axvline(fork, color="gray", linestyle=":")
plot.set(yscale="symlog", xlabel="micro-batch; dotted: a fork", ylabel="balance")
plot.legend()
figure.savefig("streaming_balances.png", dpi=120, bbox_inches="tight")
