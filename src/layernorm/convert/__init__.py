"""From torch's networks to layernorm's: the swap of the modules, their first gains, and what their layers are called
with."""

from ._accelerate import accelerate as accelerate
from ._accelerate import restore as restore
from ._convert import convert as convert
from ._match import LayerOf as LayerOf
from ._match import MatchedLayer as MatchedLayer
from ._match import Matches as Matches
from ._match import match as match
from ._match import named_networks as named_networks
from ._match import plain_divisors as plain_divisors
from ._match import plain_equations as plain_equations
from ._quantize import quantize as quantize
from ._watched import LayerCall as LayerCall
from ._watched import layer_name as layer_name
from ._watched import put_back as put_back
from ._watched import watch_calls as watch_calls
from ._watched_torch import watch_torch_calls as watch_torch_calls
