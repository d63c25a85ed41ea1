"""Experiment 6.3."""
