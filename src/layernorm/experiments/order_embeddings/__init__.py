"""Experiment 6.1."""
