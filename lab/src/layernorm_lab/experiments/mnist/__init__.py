"""Experiment 6.6: permutation-invariant MNIST, and the same on scikit-learn's digits."""
