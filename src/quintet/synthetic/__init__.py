"""Data sets drawn by code, and their judges."""
