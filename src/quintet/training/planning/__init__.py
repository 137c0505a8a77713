"""`quintet plan`: memory, FLOPs and time of a training, from one step on tensors without contents."""
