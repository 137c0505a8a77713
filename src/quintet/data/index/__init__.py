"""Listing of the items of a folder, of tar or parquet shards, or of a remote URL."""
