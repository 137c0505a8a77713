"""Shared foundations: random numbers, statistics, batches, collectives, files."""
