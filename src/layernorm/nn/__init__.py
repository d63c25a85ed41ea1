"""Modules: layer-normalised recurrent networks and feed-forward norms that take the place of torch's."""

import warnings

import torch

from ..formula import Formula, Recurrence
from . import init as init
from ._gru import GRU as GRU
from ._gru import GRUCell as GRUCell
from ._lstm import LSTM as LSTM
from ._lstm import LSTMCell as LSTMCell
from ._norms import BatchNorm as BatchNorm
from ._norms import LayerNorm as LayerNorm
from ._norms import RMSNorm as RMSNorm
from ._population import BatchNormOverTime as BatchNormOverTime
from ._population import Norm as Norm
from ._rnn import RNN as RNN
from ._rnn import RNNCell as RNNCell
from ._update_bn import update_bn as update_bn

# What a file of a whole module names: data classes and modules. torch.load reads no others from a file that it does not
# trust.
torch.serialization.add_safe_globals(
    [RNN, LSTM, GRU, RNNCell, LSTMCell, GRUCell, LayerNorm, RMSNorm, BatchNorm, BatchNormOverTime, Formula, Recurrence]
)

# torch.jit.trace warns of comparisons of sizes, which here only decide whether an error is raised. The filter is for
# the code of this package alone. There is no way without one: to look at a traced size is what warns, and
# `warnings.catch_warnings` inside a call changes the filters of other threads. torch has one for its own modules, too.
warnings.filterwarnings("ignore", category=torch.jit.TracerWarning, module=__name__)
