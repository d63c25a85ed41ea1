"""Attacks on the package that draw their cases at random: `make torture MINUTES=10`."""
