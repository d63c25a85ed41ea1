"""The laboratory of `layernorm`: the paper's experiments and theory as commands, their runs and reports.

Reading order: `protocol.py` (what an experiment is), `experiments/mnist/` (one of them), `train/` (a task, the loop),
`report/` (what a run ends in), `cli/` (the command).
"""
