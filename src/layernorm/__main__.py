"""`python -m layernorm`, for `torchrun -m` and for where the script is not on the path."""

import sys

from .cli import main

sys.exit(main())
