"""Experiment 6.7: a convolutional network on CIFAR-10, and its units near the image's border."""
