"""From torch's networks to layernorm's: the swap of the modules, and what their layers are called with."""

from ._convert import convert as convert
from ._watched import LayerCall as LayerCall
from ._watched import watch_calls as watch_calls
