"""Section 5 of the paper and its appendix: invariances, Fisher matrices and the metric they make, in float64."""

from ._families import FAMILIES as FAMILIES
from ._families import Family as Family
from ._families import gaussian as gaussian
from ._fisher import MonteCarlo as MonteCarlo
from ._fisher import fisher as fisher
from ._fisher import fisher_glm as fisher_glm
from ._fisher import fisher_hessian as fisher_hessian
from ._fisher import fisher_monte_carlo as fisher_monte_carlo
from ._fisher import fisher_vector_product as fisher_vector_product
from ._fisher import kl as kl
from ._fisher import quadratic_form as quadratic_form
from ._invariance import CASE_RECENTRING as CASE_RECENTRING
from ._invariance import TRANSFORMS as TRANSFORMS
from ._invariance import Transform as Transform
from ._invariance import Verdict as Verdict
from ._invariance import invariance as invariance
from ._invariance import invariance_table as invariance_table
from ._invariance import invariance_text as invariance_text
from ._layers import normalized as normalized
from ._normalized import block_form_gap as block_form_gap
from ._normalized import fisher_normalized as fisher_normalized
from ._normalized import normalized_glm as normalized_glm
