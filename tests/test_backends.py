"""The choice of the engine."""

import pytest
import torch

import layernorm as ln


def test_reference_is_always_there():
    assert "reference" in ln.backends.available()
    assert [engine.name for engine in ln.backends.status()] == list(ln.backends.ENGINES)


def test_a_missing_engine_is_an_error_and_says_why():
    missing = [engine for engine in ln.backends.status() if not engine.available]
    for engine in missing:
        assert engine.reason
        with (
            pytest.raises(RuntimeError, match=f"backend '{engine.name}' is not available: .*available: "),
            ln.backends.use(engine.name),
        ):
            pass


def test_an_unknown_engine_suggests_the_nearest():
    with pytest.raises(ValueError, match="did you mean 'reference'"), ln.backends.use("referense"):
        pass


def test_use_holds_inside_and_ends_outside(monkeypatch):
    """A made-up engine is called inside ``use`` and nowhere else, forward and backward."""
    from layernorm import reference

    calls = []

    class Engine:
        covers = staticmethod(lambda op, tensor, recurrence=None: tensor.dtype == torch.float32)
        normalize_saved = staticmethod(reference.normalize_saved)

        @staticmethod
        def normalize_forward(*args):
            calls.append("forward")
            return reference.normalize_forward(*args)

        @staticmethod
        def normalize_backward(*args):
            calls.append("backward")
            return reference.normalize_backward(*args)

    monkeypatch.setitem(ln.backends.ENGINES, "made-up", "made_up")
    monkeypatch.setitem(__import__("sys").modules, "made_up", Engine)
    monkeypatch.setattr(ln.backends, "_status", lambda name: ln.backends.Status(name, True, ""))
    x = torch.randn(2, 3, requires_grad=True)
    ln.functional.layer_norm(x, (3,)).sum().backward()
    assert calls == []
    with ln.backends.use("made-up"):
        y = ln.functional.layer_norm(x, (3,))
        with pytest.raises(RuntimeError, match=r"has no kernel for normalize on cpu in torch\.float64"):
            ln.functional.layer_norm(x.double(), (3,))
    y.sum().backward()  # on the engine of its forward
    assert calls == ["forward", "backward"]
