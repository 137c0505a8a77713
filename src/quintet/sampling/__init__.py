"""Decoding of tokens as pure functions over a `logits` callable."""
