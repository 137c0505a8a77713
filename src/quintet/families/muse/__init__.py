"""Muse: text to image with a masked transformer over the codes of an image tokenizer."""
