"""What is badly scaled in a network at the start of training, measured on a batch."""

from ._audit import Audit as Audit
from ._audit import Finding as Finding
from ._audit import audit as audit
from ._watched import LayerCall as LayerCall
from ._watched import watch_calls as watch_calls
