"""Experiment 6.5: handwriting synthesis on IAM-OnDB."""
