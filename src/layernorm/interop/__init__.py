"""Reads the weights of other libraries' layer-normalised networks into layernorm's modules, and writes them."""

from ._nemo import ln_lstm as ln_lstm
from ._state import from_state as from_state
from ._state import shapes as shapes
from ._state import to_state as to_state
