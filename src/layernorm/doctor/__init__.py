"""`layernorm doctor`: what is installed here, and with ``--check`` whether every engine computes what it should.

- `installation`: versions, machine, engines, data sets.
- `battery`: the problems; `comparison`: one of them by one engine, against float64; `timing`: against torch.
- `isolation`: runs them in a process of its own, which may crash or hang.
- `check`: all of that; `table`: what it prints.
"""
