"""quintet."""
