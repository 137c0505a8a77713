"""Multi-process training: rendezvous, hang detection, sharded models (FSDP)."""
