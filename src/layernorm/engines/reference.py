"""The reference engine: the equations, and their backward by hand. It covers every call that no kernel covers."""

import torch

from ..equations import FORMULA_FIELDS as FORMULA_FIELDS
from ..equations.norms import normalize_backward as normalize_backward
from ..equations.norms import normalize_forward as normalize_forward
from ..equations.norms import normalize_saved as normalize_saved
from ..equations.recurrent import recurrent_backward as recurrent_backward
from ..equations.recurrent import recurrent_forward as recurrent_forward
from ..equations.recurrent import recurrent_saved as recurrent_saved
from ..equations.steps import prepare as prepare
from ..formula import Recurrence


def covers(op: str, device: str, dtype: torch.dtype, recurrence: Recurrence | None) -> bool:
    """Covers every op, everywhere."""
    return True
