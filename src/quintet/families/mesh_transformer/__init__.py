"""Meshes from texts: a transformer over the tokens of faces."""
