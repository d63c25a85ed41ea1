"""Experiment 6.4: DRAW on binarised MNIST."""
