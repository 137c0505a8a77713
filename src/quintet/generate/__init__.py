"""Decoding that more than one family uses: how tokens come out of a model's logits."""
