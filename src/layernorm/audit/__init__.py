"""What is badly scaled in a network at the start of training, measured on a batch."""

from ._audit import Audit as Audit
from ._audit import Finding as Finding
from ._audit import audit as audit
