"""Usages of the original packages, each executed by a test: one module per package, and one for its trainers."""
