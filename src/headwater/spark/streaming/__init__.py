"""The changelog source: `spark.readStream.format("headwater")`, and helpers for its rows."""
