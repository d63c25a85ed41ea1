"""Modules: torch's recurrent networks and normalisations, layer-normalised."""

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

# As torch does for its own modules: what torch.jit.trace warns of here are comparisons of sizes, for errors alone.
warnings.filterwarnings("ignore", category=torch.jit.TracerWarning, module=__name__)
