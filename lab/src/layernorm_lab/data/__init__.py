"""Data sets: where their files come from, and one file for each set that reads them. Imports `runs`."""
