"""Training: the loop, batches, progress, several processes. Imports `config` and `runs`."""
