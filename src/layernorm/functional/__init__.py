"""The functions behind the modules: they gather the arguments, choose an engine and bind the gradient."""

from ..equations.arguments import NO_CHANGES as NO_CHANGES
from ..equations.arguments import StateChanges as StateChanges
from ..equations.checks import check_dense as check_dense
from ..equations.schedule import apply_zoneout as apply_zoneout
from ..equations.schedule import count_rows as count_rows
from ..equations.schedule import lines_of as lines_of
from ._bind import autocast_type as autocast_type
from ._bind import is_eager as is_eager
from ._norms import NORMALIZE as NORMALIZE
from ._norms import add_layer_norm as add_layer_norm
from ._norms import add_rms_norm as add_rms_norm
from ._norms import layer_norm as layer_norm
from ._norms import rms_norm as rms_norm
from ._recurrent import as_cuts as as_cuts
from ._recurrent import cast_tensors as cast_tensors
from ._recurrent import describe as describe
from ._recurrent import gru as gru
from ._recurrent import is_onednns as is_onednns
from ._recurrent import lstm as lstm
from ._recurrent import recurrent as recurrent
from ._recurrent import rnn as rnn
from ._recurrent_op import RECURRENT as RECURRENT
from ._steps import Steps as Steps
