"""Experiment 6.2: an attentive reader answers questions about passages, Figure 2."""
