"""The claims of section 5 and the appendix, each with its measurement. The command and its page show these."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from . import layer_claims, network_claims
from .measured import Data, Measured


@dataclass(frozen=True)
class Claim:
    """A statement of the paper and its measurement.

    Args:
        name: one word.
        where: section, table, equations of the paper.
        functions: the names of the functions of `layernorm.geometry` that it is measured with.
        statement: what is claimed.
        holds: the verdict on the statement. ``measure`` tells whether the numbers agree with verdict and condition.
        condition: the condition under which the statement holds, or why it does not.
        measure: ``(seed, data) -> Measured``.
    """

    name: str
    where: str
    functions: tuple[str, ...]
    statement: str
    holds: bool
    condition: str
    measure: Callable[[int, Data], Measured]


CLAIMS: tuple[Claim, ...] = (
    Claim(
        "invariance", "section 5.1, Table 1", ("invariance_table", "invariance"),
        "Batch, weight and layer norm are invariant to the changes of weights and data that Table 1 lists, and to no "
        "other of its six.",
        True,
        "Scales are positive, eps is 0, the bias is added after the norm, and batch norm takes the statistics of the "
        "changed data.",
        layer_claims.table_1,
    ),
    Claim(
        "quadratic", "section 5.2.1, eqs. 8 and 9", ("kl", "fisher"),
        "For a small step the KL divergence is ds^2, half the quadratic form of the Fisher matrix.",
        True,
        "The error of ds^2 is of third order in the step's length, that of the ratio of KL to ds^2 of first order. A "
        "Gaussian model that is linear in its parameters has no error.",
        layer_claims.quadratic,
    ),
    Claim(
        "fisher", "section 5.2, eqs. 9 to 14",
        ("fisher_glm", "fisher_normalized", "fisher", "fisher_hessian", "fisher_monte_carlo"),
        "The Fisher matrix is the score's second moment and the expected negative Hessian; the expected score is 0; "
        "closed forms give it for the GLM and for the normalised GLM.",
        True,
        "The likelihood is that of an exponential family in its natural parameters. Under layer and RMS norm the "
        "closed form needs every d eta_i / d w_j, which eq. 13 leaves out: see the next claim.",
        layer_claims.three_ways,
    ),
    Claim(
        "blocks", "section 5.2.2, eqs. 13 and 14", ("fisher_normalized", "block_form_gap"),
        "The blocks of eq. 13 are the Fisher matrix of the normalised GLM under batch, weight and layer norm.",
        False,
        "They are under batch norm, weight norm and none. Under layer and RMS norm all units share mu and sigma, so "
        "that eta_i depends on every w_j. The H - 1 terms that are left out have the size 1/H, next to one of size 1. "
        "In the Frobenius norm they are about 1/sqrt(H) of the matrix. In the spectral norm they hardly fall with H "
        "for Gaussian and Bernoulli outputs, and they fall for Poisson and categorical ones. The blocks have a "
        "curvature along W and 1 gamma^T, which do not change layer norm's output.",
        layer_claims.blocks,
    ),
    Claim(
        "curvature", "section 5.2.2, implicit learning rate reduction", ("curvature_ratio",),
        "When w_i grows to twice its length and the output stays, the curvature along w_i changes by a factor of 1/2.",
        False,
        "F_ii falls to 1/4. The factor 1/2 is that of the cross blocks F_ij under batch and weight norm. They are 0 "
        "in the paper's GLM, whose outputs are independent. In the direction of w_i itself the curvature is 0. Under "
        "layer and RMS norm the output stays only where the whole matrix grows, and then every block falls to 1/4.",
        layer_claims.curvature,
    ),
    Claim(
        "training", "section 5.2.2, implicit learning rate reduction", ("step_angles",),
        "Under gradient descent the norm of the weights controls their learning rate: the longer they are, the less a "
        "step turns them.",
        True,
        "The step is one of gradient descent. Under batch, weight, layer and RMS norm its angle is inversely "
        "proportional to the square of the weights' length, and every step makes the weights longer: each w_i under "
        "batch and weight norm, W as a whole under layer and RMS norm. Without a norm the angle falls no faster than "
        "the length grows. Under Adam, with which the paper trains, the angle is inversely proportional to the length "
        "under every norm and without one, so that the reduction is not the norm's doing.",
        network_claims.training,
    ),
    Claim(
        "gain", "appendix, eqs. 32, 33 and 35", ("gain_metric_by_scale", "gain_metric"),
        "ds^2 along the gains does not depend on the scale of the inputs under batch and layer norm; along the same "
        "change of a standard GLM's weights it does.",
        True,
        "The outputs are Gaussian, and their covariance is the same for every case. Under weight norm ds^2 grows with "
        "the square of the inputs' scale, as it does without a norm, because its sigma does not depend on the inputs "
        "(eq. 34 is eq. 35 term by term). The paper's conclusion names batch and layer norm alone.",
        layer_claims.gains,
    ),
    Claim(
        "prediction", "appendix, eq. 32", ("gain_metric",),
        "Under batch norm ds^2 along the gains is that of the outputs' covariance alone.",
        False,
        "Eq. 32 leaves out the factor (a_i - mu_i)(a_j - mu_j) / (sigma_i sigma_j). Its mean is 1 for i = j, so that "
        "the equation is exact for independent outputs whose covariance is the same for every case, as the Gaussian's "
        "is. For other outputs the covariance varies with the summed inputs, and the equation can be far off: for a "
        "categorical it gives 0 for a step that adds the same number to every gain.",
        layer_claims.prediction,
    ),
    Claim(
        "deep", "section 5.2.2, block-diagonal approximation", ("neuron_blocks", "power_iteration"),
        "In a deep network the same analysis holds for each neuron's block of the Fisher matrix.",
        True,
        "The blocks are exact for the output of the whole network. The matrix is not zero between the blocks. Leaving "
        "that part out is the approximation.",
        network_claims.deep,
    ),
)  # fmt: skip

SPECTRUM = Claim(
    "spectrum", "section 5.2.2, at the size of experiment 6.6", ("power_iteration", "fisher_vector_product"),
    "The largest eigenvalue of each layer's Fisher matrix is found without the matrix in a network of 784-1000-1000-10 "
    "units.",
    True,
    "Power iteration ends at a residual of 1e-4 of the eigenvalue. An eigenvalue of the matrix lies within the "
    "residual.",
    network_claims.spectrum,
)  # fmt: skip
"""Not one of `CLAIMS`, because it takes many seconds and each of these a fraction of one."""
