"""The training loop and what it needs. Names no family."""
