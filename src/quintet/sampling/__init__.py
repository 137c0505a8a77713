"""Token decoding (masked and autoregressive) as pure functions over a `logits` callable."""
