"""Phenaki: text to video with a masked transformer over the codes of a video tokenizer."""
