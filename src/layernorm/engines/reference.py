"""The reference engine: the equations, and their backward by hand. It computes every call that no kernel does."""

from ..equations import FORMULA_FIELDS as FORMULA_FIELDS
from ..equations.norms import normalize_backward as normalize_backward
from ..equations.norms import normalize_forward as normalize_forward
from ..equations.norms import normalize_saved as normalize_saved
from ..equations.recurrent import recurrent_backward as recurrent_backward
from ..equations.recurrent import recurrent_forward as recurrent_forward
from ..equations.recurrent import recurrent_saved as recurrent_saved
from ..equations.steps import prepare as prepare
from .protocol import YES, Kind, Support


def supports(kind: Kind) -> Support:
    """Supports every op, everywhere."""
    return YES


def is_worth_it(kind: Kind) -> Support:
    return Support(False, "plain operations take longer than PyTorch's kernels")
