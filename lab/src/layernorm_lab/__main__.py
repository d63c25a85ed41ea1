"""`python -m layernorm_lab`, for `torchrun -m` and where the script `layernorm` is not on the path."""

import sys

from .cli import main

sys.exit(main())
