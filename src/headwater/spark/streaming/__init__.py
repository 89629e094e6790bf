"""The changelog source: `spark.readStream.format("headwater")`, and helpers for its rows."""

from headwater.spark.streaming import retractable
from headwater.spark.streaming.retractable import collapse

__all__ = ["collapse", "retractable"]
