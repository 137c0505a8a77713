"""Which items a folder, shards, parquet files or a remote address hold."""
