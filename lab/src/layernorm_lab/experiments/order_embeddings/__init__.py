"""Experiment 6.1: order embeddings of images and sentences."""
