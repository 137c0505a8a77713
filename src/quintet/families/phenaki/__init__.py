"""Phenaki: text to video by a masked transformer over the codes of a video tokenizer."""
