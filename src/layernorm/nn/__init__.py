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

# torch ignores these warnings for its own modules, too. torch.jit.trace warns here of comparisons of sizes, which only
# decide whether an error is raised.
warnings.filterwarnings("ignore", category=torch.jit.TracerWarning, module=__name__)
