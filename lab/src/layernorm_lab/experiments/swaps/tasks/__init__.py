"""The tasks: a file for each, with its data, model, loss and evaluation."""
