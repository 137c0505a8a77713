"""The recipe `cvivit`: a tokenizer of video and pictures."""
