"""The paper's experiments: one file an experiment, and beside them what all of them share.

Reading order: `experiment.py` (what an experiment is), `mnist.py` (one of them), `training.py` (the loop), `sweep.py`
(what `layernorm run` does), `report.py` (what it ends in). Nothing here is imported by `import layernorm`.
"""
