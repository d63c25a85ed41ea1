"""`layernorm doctor`: what is installed here, and with ``--check`` whether every engine computes correctly.

- `installation`: versions, engines and what they run. `machine`: versions, commit, CPU, cores.
- `battery`: the problems that engines are compared on.
- `comparison`: compares one engine with float64 on one problem. `timing`: compares its time with torch's.
- `check`: runs all of these. `table`: the text that it prints.
- `command`: `python -m layernorm doctor`, which needs no laboratory.
"""
