"""The paper's experiments: one folder an experiment, and beside them the rooms that all of them share.

Reading order: `protocol.py` (what an experiment is), `mnist/` (one of them), `train/` (the loop), `command/` (what
`layernorm run` and `layernorm sample` do), `report/` (what a run ends in). Nothing here is imported by
`import layernorm`.
"""
