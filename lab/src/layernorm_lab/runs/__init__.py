"""Runs on the disk: the folder of a run, its files, and networks restored from it. Imports no other folder here."""
