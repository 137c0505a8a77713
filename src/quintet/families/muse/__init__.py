"""Muse: text to image by a masked transformer over the codes of a tokenizer."""
