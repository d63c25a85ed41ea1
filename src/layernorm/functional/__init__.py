"""The functions behind the modules: they gather the arguments, choose an engine and bind the gradient."""

from ._networks import gru as gru
from ._networks import lstm as lstm
from ._networks import rnn as rnn
from ._norms import add_layer_norm as add_layer_norm
from ._norms import add_rms_norm as add_rms_norm
from ._norms import layer_norm as layer_norm
from ._norms import rms_norm as rms_norm
