"""Data folders, caption conventions, caches, the embedded data sets and their judges."""
