"""`audit` with optimisers: the start beside the plain network's, the first update, and nothing left behind."""

import copy
import math
import warnings

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

import layernorm as ln

DIGITS = torch.tensor(load_digits().images[:32] / 16, dtype=torch.float32)
ROWS = DIGITS.transpose(0, 1).contiguous()  # (8, 32, 8): a step a row


class Classifier(nn.Module):
    """A recurrent network over the rows, and its last output read out."""

    def __init__(self, network):
        super().__init__()
        self.network = network
        self.out = nn.Linear(network.hidden_size, 10)

    def forward(self, rows):
        return self.out(self.network(rows)[0][-1])


LABELS = torch.tensor(load_digits().target[:32])


def classified(scores):
    return nn.functional.cross_entropy(scores, LABELS)


def drawn(**options):
    torch.manual_seed(0)
    return Classifier(ln.LSTM(8, 64, **options))


def started(model, optimizer, loss=classified):
    """What is found when the optimiser is known."""
    return ln.audit(model, ROWS, loss=loss, optimizer=optimizer)


def test_gains_that_the_optimizer_does_not_have_are_found():
    """It was made before `convert`. What asks for no gradient does not count, nor a network that it has nothing of."""
    torch.manual_seed(0)
    model = Classifier(nn.LSTM(8, 64))
    before = torch.optim.Adam(model.parameters(), lr=1e-3)
    ln.convert(model, match=(ROWS,))
    (found,) = started(model, before)
    assert found.module == "network"
    assert "the optimizer does not have gain_ih_l0, gain_hh_l0, gain_c_l0, bias_c_l0, which stay" in found.what
    assert not started(model, torch.optim.Adam(model.parameters(), lr=1e-3))
    of_scores = [p for name, p in model.named_parameters() if "network" not in name]
    assert not started(model, torch.optim.Adam(of_scores, lr=1e-3))
    for name, p in model.named_parameters():
        p.requires_grad_("_c_" not in name and "gain" not in name)
    assert not started(model, before)


def test_a_start_unlike_the_plain_networks_is_found_and_matched_gains_end_it():
    model = drawn()
    found = started(model, torch.optim.SGD(model.parameters(), lr=20.0))
    size, leap = found
    assert size.module == "network"
    assert "W_hh h is " in size.what
    assert "its gain is 1" in size.what
    set_gains = dict(model.named_parameters())["network.gain_hh_l0"]
    assert size.measured == pytest.approx(1 / ln.match(drawn(), ROWS)[0].gains["gain_hh"][0], rel=1e-5)
    assert "at the learning rate 20 the first update changes network.weight_hh_l0 by " in leap.what
    assert leap.measured > 10
    assert (set_gains == 1).all()
    ln.match(model, ROWS)
    assert started(model, torch.optim.SGD(model.parameters(), lr=20.0)) == []
    plain = drawn(norm=None)
    assert started(plain, torch.optim.SGD(plain.parameters(), lr=20.0)) == []


def test_the_first_update_is_the_optimisers():
    model, plain = drawn(), drawn(norm=None)
    finding = started(model, torch.optim.SGD(model.parameters(), lr=20.0))[1]
    changes = []
    for made in (model, plain):
        classified(made(ROWS)).backward()
        weight = made.network.weight_hh_l0
        changes.append(20 * (weight.grad.norm() / weight.detach().norm()).item())
    assert finding.measured == pytest.approx(changes[0] / changes[1], rel=1e-4)
    assert f"{changes[0]:.2g} of its length" in finding.what


def test_a_small_first_update_does_no_harm():
    model = drawn()
    (size,) = started(model, torch.optim.SGD(model.parameters(), lr=1e-4))
    assert "W_hh h is " in size.what


def test_a_matrix_of_zeros_hides_nothing():
    """An adapter starts with one, and many a last layer."""
    model = drawn()
    model.shift = nn.Parameter(torch.zeros(1, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=20.0)
    found = ln.audit(model, ROWS, loss=lambda scores: classified(scores + model.shift), optimizer=optimizer)
    assert [finding.module for finding in found] == ["network", "network"]
    assert (model.shift == 0).all()


def test_adams_first_update_does_not_depend_on_the_norm():
    model = drawn()
    (size,) = started(model, torch.optim.Adam(model.parameters()))
    assert "W_hh h is " in size.what


def test_what_the_optimisers_hooks_do_to_gradients_counts():
    model = drawn()
    optimizer = torch.optim.SGD(model.parameters(), lr=2e4)
    optimizer.register_step_pre_hook(lambda *_: scale_gradients(model, 1e-3))
    without = torch.optim.SGD(model.parameters(), lr=2e4)
    scaled, free = (
        float(started(model, of)[-1].what.partition(" by ")[2].partition(" of ")[0]) for of in (optimizer, without)
    )
    assert scaled == pytest.approx(1e-3 * free, rel=0.1)  # two digits are printed


def scale_gradients(model, factor):
    for parameter in model.parameters():
        if parameter.grad is not None:  # in the plain network the gains have none
            parameter.grad *= factor


@pytest.mark.parametrize("make", [torch.optim.Adam, torch.optim.LBFGS, torch.optim.SGD])
def test_an_audit_takes_the_optimisers_step_back(make):
    model = drawn()
    optimizer = make(model.parameters(), lr=0.1)

    def closure():
        optimizer.zero_grad()
        total = classified(model(ROWS))
        total.backward()
        return total

    optimizer.step(closure)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    grads = {name: p.grad for name, p in model.named_parameters()}
    states = {p: (state, {key: str(value) for key, value in state.items()}) for p, state in optimizer.state.items()}
    groups = [dict(group) for group in optimizer.param_groups]
    started(model, optimizer)
    assert groups == [dict(group) for group in optimizer.param_groups]
    assert set(states) == set(optimizer.state)
    for p, (state, content) in states.items():
        assert optimizer.state[p] is state
        assert {key: str(value) for key, value in state.items()} == content
    for name, p in model.named_parameters():
        assert torch.equal(p, before[name])
        assert p.grad is grads[name]


def test_an_optimiser_that_cannot_be_followed_is_refused():
    model = drawn()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(TypeError, match=r"optimizer must be a torch.optim.Optimizer, got float"):
        started(model, 0.1)
    with pytest.raises(ValueError, match=r"an optimizer needs the training's loss.* got loss=None"):
        started(model, optimizer, None)
    with pytest.raises(ValueError, match=r"the optimizer has no parameter of the module's"):
        started(drawn(), optimizer)
    with pytest.raises(ValueError, match=r"expected the optimizer's parameter groups to have a learning rate, lr"):
        started(model, torch.optim.Optimizer(model.parameters(), {}))


class Signs(torch.optim.Optimizer):
    """Its step takes no closure."""

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in (p for p in group["params"] if p.grad is not None):
                p -= group["lr"] * p.grad.sign()


def test_an_optimiser_whose_step_takes_no_closure():
    model = drawn()
    before = [p.detach().clone() for p in model.parameters()]
    started(model, Signs(model.parameters(), {"lr": 0.1}))
    assert all(map(torch.equal, before, model.parameters()))


def test_it_works_in_inference_mode():
    model = drawn()
    with torch.inference_mode():
        found = started(model, torch.optim.SGD(model.parameters(), lr=20.0))
    assert found == started(model, torch.optim.SGD(model.parameters(), lr=20.0)) != []


def test_a_large_first_update_is_the_starts_fault_and_not_the_rates():
    """Both starts are measured: the numbers are those of an audit of a network that has them."""
    model = drawn()
    leap = started(model, torch.optim.SGD(model.parameters(), lr=20.0))[1]
    steady = drawn()
    steady.network.gain_hh_l0.data.fill_(0.6)
    found = started(steady, torch.optim.SGD(steady.parameters(), lr=20.0))
    ratio = next(f.measured for f in found if "first update" in f.what)
    start = 'with the gains of a new network with gain_init="steady"'
    assert f"It is {ratio:.3g} times the plain network's {start}." in leap.fix
    assert "It is not larger than the plain network's with gains set by ln.match(module, *batch)." in leap.fix
    assert not [finding for finding in found if "Lower the rate" in str(finding)]


def test_several_optimisers_are_one_training():
    """None is said to lack what another has, and each first update is that of its own rate."""
    model = drawn()
    of_network, of_scores = (list(part.parameters()) for part in (model.network, model.out))
    of_gains = [p for name, p in model.network.named_parameters() if "gain" in name or "bias_c" in name]
    of_weights = [p for p in of_network if not any(p is gain for gain in of_gains)]
    rest = torch.optim.Adam(of_scores)
    whole = started(model, torch.optim.SGD(of_network, lr=20.0))
    parts = [torch.optim.SGD(of_weights, lr=20.0), torch.optim.SGD(of_gains, lr=1.0), rest]
    assert started(model, parts) == started(model, tuple(parts)) == whole
    (left,) = [f for f in started(model, [parts[0], rest]) if "does not have" in f.what]
    assert "gain_ih_l0, gain_hh_l0, gain_c_l0, bias_c_l0" in left.what
    with pytest.raises(TypeError, match=r"optimizer must be a torch.optim.Optimizer, got int"):
        started(model, [rest, 3])


class Words(nn.Module):
    """Embeddings, whose gradient may be sparse, below a network."""

    def __init__(self, sparse):
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(50, 8, sparse=sparse)
        self.rest = Classifier(ln.LSTM(8, 64, gain_init="match"))

    def forward(self, words):
        return self.rest(self.words(words))


def test_sparse_gradients_are_as_dense_ones():
    words = torch.randint(50, (8, 32))
    found = []
    for sparse in (True, False):
        model = Words(sparse)
        with torch.no_grad():
            model.words.weight.mul_(1e-6)  # a fault to be found, in both
        of_words = (torch.optim.SparseAdam if sparse else torch.optim.Adam)(model.words.parameters(), lr=0.1)
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        optimizers = [of_words, torch.optim.Adam(model.rest.parameters())]
        found.append(ln.audit(model, words, loss=classified, optimizer=optimizers))
        assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
        assert all(p.grad is None for p in model.parameters())
    assert found[0] == found[1] != []


def test_a_sparse_gradient_that_is_not_finite_is_named():
    model = Words(sparse=True)
    found = ln.audit(model, torch.randint(50, (8, 32)), loss=lambda scores: (scores * 0).sum().sqrt())
    assert "the gradient of words.weight is not finite" in found[0].what


def test_nothing_outside_the_model_gets_a_gradient():
    model = drawn()
    scale, rows = nn.Parameter(torch.ones(())), ROWS.clone().requires_grad_()
    optimizer = torch.optim.SGD(model.parameters(), lr=20.0)
    ln.audit(model, rows, loss=lambda scores: classified(scale * scores), optimizer=optimizer)
    assert scale.grad is None
    assert rows.grad is None
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("optimizers", [1, 2])
def test_a_forward_before_the_audit_keeps_its_backward(optimizers):
    """Its saved tensors are parameters that the first update changes, and the buffers of batch norm."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8).eval(), Classifier(ln.LSTM(8, 64)))
    model.forward = lambda rows: model[2](model[1](model[0](rows).transpose(1, 2)).transpose(1, 2))
    makers = [torch.optim.SGD(model.parameters(), lr=20.0), torch.optim.Adam(model[0].parameters())][:optimizers]
    wanted = torch.autograd.grad(classified(model(ROWS)), list(model.parameters()))
    versions = [t._version for t in [*model.parameters(), *model.buffers()]]
    total = classified(model(ROWS))
    found = started(model, makers)
    assert any("first update" in finding.what for finding in found)  # the trial of other starts changes nothing either
    assert [t._version for t in [*model.parameters(), *model.buffers()]] == versions
    total.backward()
    for p, gradient in zip(model.parameters(), wanted, strict=True):
        assert torch.equal(p.grad, gradient)


def test_an_audit_is_no_step_for_a_scheduler():
    model = drawn()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    before = {key: copy.copy(value) for key, value in vars(optimizer).items()}
    started(model, optimizer)
    assert vars(optimizer).keys() == before.keys()
    with pytest.warns(UserWarning, match=r"lr_scheduler.step\(\)` before `optimizer.step\(\)"):
        scheduler.step()
    optimizer.step()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scheduler.step()
    assert math.isclose(optimizer.param_groups[0]["lr"], 0.1 * 0.1**2)
