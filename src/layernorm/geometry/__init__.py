"""Section 5 of the paper and its appendix, measured in float64: invariances, Fisher matrices, curvature and gains.

It also measures the stability of section 3.1: Lyapunov exponents, measured and predicted, and how gradients change with
the number of steps that they go back.
"""

from ._curvature import CurvatureRatio as CurvatureRatio
from ._curvature import StepAngles as StepAngles
from ._curvature import curvature_ratio as curvature_ratio
from ._curvature import gain_metric as gain_metric
from ._curvature import gain_metric_by_scale as gain_metric_by_scale
from ._curvature import step_angles as step_angles
from ._families import FAMILIES as FAMILIES
from ._families import Family as Family
from ._families import gaussian as gaussian
from ._fisher import Model as Model
from ._fisher import MonteCarlo as MonteCarlo
from ._fisher import fisher as fisher
from ._fisher import fisher_glm as fisher_glm
from ._fisher import fisher_hessian as fisher_hessian
from ._fisher import fisher_monte_carlo as fisher_monte_carlo
from ._fisher import fisher_vector_product as fisher_vector_product
from ._fisher import kl as kl
from ._fisher import quadratic_form as quadratic_form
from ._invariance import CASE_RECENTRING as CASE_RECENTRING
from ._invariance import INVARIANT_BELOW as INVARIANT_BELOW
from ._invariance import TRANSFORMS as TRANSFORMS
from ._invariance import Transform as Transform
from ._invariance import Verdict as Verdict
from ._invariance import invariance as invariance
from ._invariance import invariance_table as invariance_table
from ._invariance import invariance_text as invariance_text
from ._layers import normalized as normalized
from ._layers import standard_layer as standard_layer
from ._mean_field import predicted_exponent as predicted_exponent
from ._normalized import block_form_gap as block_form_gap
from ._normalized import fisher_normalized as fisher_normalized
from ._normalized import normalized_glm as normalized_glm
from ._spectrum import Eigenpair as Eigenpair
from ._spectrum import neuron_blocks as neuron_blocks
from ._spectrum import power_iteration as power_iteration
from ._stability import Dynamics as Dynamics
from ._stability import Lyapunov as Lyapunov
from ._stability import dynamics as dynamics
from ._stability import gradient_by_lag as gradient_by_lag
from ._stability import lyapunov as lyapunov
