"""`python -m layernorm doctor`. The laboratory's command is `layernorm`, or `python -m layernorm_lab`."""

import sys

from .doctor.command import main

sys.exit(main())
