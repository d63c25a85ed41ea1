"""Experiment 6.3: skip-thoughts, vectors of sentences."""
