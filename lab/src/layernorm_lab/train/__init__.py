"""Training: the loop, batches, progress, several processes. Imports `protocol` and `runs`."""
