"""Several processes: how they meet, hang detection, sharded models."""
