"""The arguments of a recurrent call are spelled once: by their fields, which the op's schema follows."""

import ast
import itertools
from pathlib import Path

import torch
from torch.utils._pytree import tree_leaves

import layernorm
from layernorm.equations.arguments import NO_CHANGES, RecurrentArguments, StateChanges
from layernorm.formula import PRESETS, Recurrence
from layernorm.functional._recurrent import RECURRENT

ROOT = Path(layernorm.__file__).parent


def calls():
    """Calls with any of their tensors there or not."""
    for network, there in itertools.product(("LSTM", "GRU"), itertools.product([False, True], repeat=6)):
        r = Recurrence(network, PRESETS["paper"][network], norm="batch")
        some = iter(lambda: torch.zeros(()), None)
        several = lambda wanted, of, some=some: [next(some) for _ in of] if wanted else []  # noqa: E731
        lengths, reset, sizes, dropout = (next(some) if wanted else None for wanted in there[:4])
        kept = tuple(several(there[4], r.state_names))
        changes = StateChanges(several(there[5], r.state_names), dropout, kept)
        changes = changes if tree_leaves(changes, is_leaf=torch.is_tensor) != [None] else NO_CHANGES
        tensors = next(some), several(True, r.state_names), several(True, r.parameter_names)
        population = several(there[5], r.gain_names)
        yield RecurrentArguments(*tensors, r, changes, lengths, reset, there[0], sizes, population, there[1])


def leaves(value):
    return [id(leaf) for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def test_the_tensors_are_those_of_the_fields_in_order_and_can_be_exchanged():
    for a in calls():
        assert list(map(id, a.tensors)) == leaves(a)
        assert leaves(a.differentiable) == leaves(a.tensors[: len(a.differentiable)])
        others = [t.clone() for t in a.tensors]
        b = a.with_tensors(others)
        assert leaves(b) == list(map(id, others))
        assert [x for x in b if isinstance(x, bool | Recurrence)] == [x for x in a if isinstance(x, bool | Recurrence)]
        assert (b.changes is NO_CHANGES) == (a.changes is NO_CHANGES)
        for mine, its in zip(a, b, strict=True):
            assert (mine is None) == (its is None)


def test_the_schema_takes_them_apart_and_puts_them_together():
    for a in calls():
        flat = RECURRENT.schema_arguments((a, "more"))
        assert leaves(flat) == leaves(a)
        b, rest = RECURRENT.engine_arguments(flat)
        assert (leaves(b), b.recurrence, b.reverse, b.count_padding, rest) == (
            leaves(a), a.recurrence, a.reverse, a.count_padding, "more",
        )  # fmt: skip
        assert len(tree_leaves(b.changes)) == len(tree_leaves(a.changes))


def test_the_schema_has_every_field():
    names = [argument.name for argument in torch.ops.layernorm.recurrent.default._schema.arguments]
    expected = []
    for field in RecurrentArguments._fields:
        expected += ["restart", "dropout", "kept_h", "kept_c"] if field == "changes" else [field]
    assert names == [*expected, "backend"]


def spelled(code):
    """The lines of calls, tuples and parameters that have seven of the fields or more."""
    fields = set(RecurrentArguments._fields)
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.arguments):
            parts = [arg.arg for arg in node.args]
        elif isinstance(node, ast.Call | ast.Tuple):
            parts = [
                n.attr if isinstance(n, ast.Attribute) else getattr(n, "id", "") for n in ast.iter_child_nodes(node)
            ]
        else:
            continue
        if len(fields.intersection(parts)) >= 7:
            yield parts


def test_no_other_file_spells_them():
    found = {path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.py") if list(spelled(path.read_text("utf-8")))}
    assert found <= {"equations/arguments.py", "export/onnx.py"}  # ONNX's exporter reads the signature of a translation


def test_the_search_sees_a_call_a_tuple_and_a_function():
    names = "input, state, params, recurrence, changes, lengths, reset"
    for code in (
        f"run({names})",
        f"{names} = a",
        f"def f({names}): pass",
        "run(" + "a." + names.replace(" ", " a.") + ")",
    ):
        assert len(list(spelled(code))) == 1
    assert not list(spelled("run(input, state, params, recurrence, lengths, reset)"))
