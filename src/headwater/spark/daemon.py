"""What Python workers of a local session are forked from, with all that tasks import imported.

Spark starts it (`spark.python.daemon.module`) with the first task. A worker that is forked from it
begins at once, and shares the memory of the modules with the others. Spark's own daemon is used for
sessions of the user's, and on clusters.
"""

from __future__ import annotations

import gc

import pyarrow as pa
import pyspark.worker  # noqa: F401 - what a worker runs
from pyspark.daemon import manager

import headwater.decode
import headwater.spark.executors  # noqa: F401 - what tasks of spans use

if __name__ == "__main__":
    pa.scalar(0)  # with the first value it is given Arrow imports pandas, if that is there
    # Spark collects garbage after every task: what was imported is none, and stays shared memory
    gc.collect()
    gc.freeze()
    manager()
