"""The training loop, tasks, optimizers, data loading and run folders."""
