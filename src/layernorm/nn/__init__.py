"""Modules: layer-normalised recurrent networks and feed-forward norms that take the place of torch's."""

import warnings

import torch

from ._audit import Audit as Audit
from ._audit import Finding as Finding
from ._audit import audit as audit
from ._convert import convert as convert
from ._gru import GRU as GRU
from ._gru import GRUCell as GRUCell
from ._lstm import LSTM as LSTM
from ._lstm import LSTMCell as LSTMCell
from ._norms import BatchNorm as BatchNorm
from ._norms import LayerNorm as LayerNorm
from ._norms import RMSNorm as RMSNorm
from ._portable import portable as portable
from ._rnn import RNN as RNN
from ._rnn import RNNCell as RNNCell
from ._watched import Taken as Taken
from ._watched import watched as watched

# torch ignores these warnings for its own modules, too. torch.jit.trace warns here of comparisons of sizes, which only
# decide whether an error is raised.
warnings.filterwarnings("ignore", category=torch.jit.TracerWarning, module=__name__)
