"""The engines: what one is (`protocol`), and each of them in a room of its own. `layernorm.backends` chooses."""

from .. import _torch as _torch  # before any name of PyTorch's is used
