"""Mesh transformer: text to mesh with an autoregressive transformer over the tokens of faces."""
