"""`python -m layernorm doctor`, which the library has by itself. Every other command is the laboratory's."""

import importlib.util
import sys

if importlib.util.find_spec("layernorm_lab") is None:
    from .doctor.command import main
else:
    from layernorm_lab.cli import main

sys.exit(main())
