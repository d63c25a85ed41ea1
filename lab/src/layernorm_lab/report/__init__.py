"""Reports: what one holds, what the runs of an experiment are compared by, how it looks. Imports `runs`."""
