"""Balances kept by Structured Streaming through three forks, with a plot of what it held."""

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
held, seen, forks = {}, [], []  # balances by owner; the same after each step; steps that were forks


def keep(rows, batch_id):
    held.update({row["owner"]: int(row["amount"]) for row in rows.collect()})


content = ContentSettings(accounts=4, tokens=2, transfers_per_transaction=1)
with simulated_portal(seed=7, blocks=40, content=content) as portal:
    options = {"portal": portal.url, "event": "erc20.Transfer"}
    options["contracts"] = portal.chain.population.tokens[0]
    source = spark.readStream.format("headwater").options(**options, journal=f"{folder}/journal")
    amount = F.col("value").cast("decimal(38,0)")
    moves = source.load().where(FITS).select("_sign", F.explode(F.array(
        F.struct(F.col("to").alias("owner"), amount.alias("amount")),
        F.struct(F.col("from").alias("owner"), (-amount).alias("amount")))).alias("m"))  # fmt: skip
    balances = moves.groupBy("m.owner").agg(retractable.sum("m.amount").alias("amount"))
    query = (balances.writeStream.outputMode("update").foreachBatch(keep)
             .option("checkpointLocation", f"{folder}/checkpoint").start())  # fmt: skip
    for move in [lambda: None, *3 * [*2 * [lambda: portal.extend(1)], lambda: portal.fork(3)]]:
        move()
        query.processAllAvailable()
        if len(portal.chain.forks) > len(forks):
            forks.append(len(seen))
        seen.append(dict(held))
    query.stop()
    portal.finalize(portal.chain.head.number)  # so that the batch source reads the whole chain
    expected = {}
    for row in spark.read.format("headwater").options(**options).load().where(FITS).collect():
        for owner, sign in ((row["to"], 1), (row["from"], -1)):
            expected[owner] = expected.get(owner, 0) + sign * int(row["value"])
    assert held == {**dict.fromkeys(held, 0), **expected}
    print(len(expected), "balances equal the chain after", len(forks), "forks")

figure = Figure(figsize=(8, 4), layout="constrained")
plot = figure.subplots()
for owner in sorted(held, key=lambda one: -len({now.get(one, 0) for now in seen}))[:5]:
    amounts = [now.get(owner, 0) / 10**18 for now in seen]
    plot.plot(amounts, drawstyle="steps-post", marker=".", label=owner[:8])
for fork in forks:
    plot.axvline(fork, color="gray", linestyle=":")
plot.set(xlabel="step: a new block; dotted: a fork of three blocks", ylabel="tokens")
plot.set_title("Balances in Spark, through three forks", loc="left")
plot.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
figure.savefig("streaming_balances.png", dpi=120)
