"""How a planned reading gets from the driver's Python to Spark's executors.

Spark hands a Python data source nothing but text options. The plan travels in one of them, pickled,
with the portal's secrets inside. So that it stays private, its name is one that Spark redacts; so
that nobody who may only write SQL can have a pickle of his own loaded, it is signed with a key that
exists in this process and in the class that was registered from it.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import MutableMapping, Sequence
from typing import ClassVar
from weakref import WeakSet

from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.types import StructType

from headwater.core import BlockRange
from headwater.errors import SourceOptionError
from headwater.spark.columns import spark_schema
from headwater.spark.part_reader import PartReader, PartsReader

NAME = "headwater_span"
OPTION = "secret.plan"  # "secret" is what spark.redaction.regex looks for

_KEY = secrets.token_bytes(32)
_registered: WeakSet[SparkSession] = WeakSet()


class SpanSource(DataSource):
    """A data source whose whole configuration is one signed option. Not for users.

    Made on the driver when a span is loaded, pickled from there to executors.
    """

    key: ClassVar[bytes] = b""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return NAME

    def schema(self) -> StructType:
        """Return the columns of the planned rows."""
        reader, _ = _unseal(self.options, self.key)
        return spark_schema(reader.schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the planned reading. Called on the driver whenever a scan is planned."""
        reader, parts = _unseal(self.options, self.key)
        return PartsReader(reader, parts)


def load_parts(spark: SparkSession, reader: PartReader, parts: Sequence[BlockRange]) -> DataFrame:
    """Return the DataFrame that reads these parts, one task each. Runs no job."""
    schema = spark_schema(reader.schema)
    if spark not in _registered:
        spark.dataSource.register(type("KeyedSpanSource", (SpanSource,), {"key": _KEY}))
        _registered.add(spark)
    plan: bytes = cloudpickle.dumps((reader, tuple(parts)))  # type: ignore[no-untyped-call]
    sealed = _seal(plan, _KEY)
    return spark.read.format(NAME).schema(schema).option(OPTION, sealed).load()


def _seal(plan: bytes, key: bytes) -> str:
    signature = hmac.digest(key, plan, hashlib.sha256)
    return base64.b64encode(signature + plan).decode()


def _unseal(options: MutableMapping[str, str], key: bytes) -> tuple[PartReader, list[BlockRange]]:
    sealed = base64.b64decode(options.get(OPTION, ""))
    size = hashlib.sha256().digest_size
    signature, plan = sealed[:size], sealed[size:]
    if not key or not hmac.compare_digest(hmac.digest(key, plan, hashlib.sha256), signature):
        raise SourceOptionError(f"the format {NAME} is for Headwater's own use", use="headwater")
    reader, parts = cloudpickle.loads(plan)
    return reader, parts
