"""What is badly scaled in a network at the start of training, measured on a batch."""

from ._audit import audit as audit
from ._finding import Audit as Audit
from ._finding import Finding as Finding
from ._finding import Growth as Growth
