"""What lake targets share: paths and credentials, columns, Parquet files, the stored state."""
