"""The PyTorch that layernorm runs on: the oldest version, and what layernorm uses of it that is not documented.

An older PyTorch is refused at import. So is one that lacks a name of `NEEDED`, as a newer one may. A test compares both
lists with the sources.
"""

from __future__ import annotations

import operator
import re

import torch

OLDEST = "2.12"
"""The oldest PyTorch on which the tests of the library pass, as in pyproject.toml."""

NEEDED = {
    # name: what it is used for. Without it layernorm is not imported, with an error that names it
    "torch._C.DispatchKey.ADInplaceOrView": "results of an op may be changed in place",
    "torch._C.DispatchKeySet": "the same",
    "torch._C._ExcludeDispatchKeyGuard": "the same",
    "torch._C._AutoDispatchBelowAutograd": "an op that computes its own gradient calls itself without one",
    "torch._C._are_functorch_transforms_active": "calls inside torch.func are computed by plain equations",
    "torch._C._functorch.get_unwrapped": "values of lengths and resets are checked inside torch.func",
    "torch._C._functorch.is_functorch_wrapped_tensor": "the same",
    "torch.autograd.forward_ad._current_level": "calls in forward mode are computed by plain equations",
    "torch._C._is_torch_function_mode_enabled": "calls under a mode go through PyTorch's dispatcher",
    "torch._C._len_torch_dispatch_stack": "the same",
    "torch._C._is_tracing": "calls in a trace go through PyTorch's dispatcher",
    "torch._C._profiler._RecordFunctionFast": "the profiler shows the ops",
    "torch.autograd.profiler._is_profiler_enabled": "the same",
    "torch._C._get_fp32_precision_getter": "PyTorch's switches for float32 products hold",
    "torch._C._current_graph_task_id": "the gradients of a stepper's parameters are computed once for each backward",
    "torch._C._will_engine_execute_node": "the same",
    "torch.autograd.Variable._execution_engine.queue_callback": "the same",
    "torch._assert_async": "a graph refuses lengths and resets when it runs",
    "torch.nn.modules.batchnorm._BatchNorm": "`audit` knows PyTorch's batch norms",
    "torch.nn.modules.instancenorm._InstanceNorm": "`audit` knows PyTorch's instance norms",
    "torch.utils._pytree.tree_leaves": "`audit` finds the tensors in what a model returns and keeps",
    "torch.utils._pytree.keystr": "`audit` names an input that is not finite",
    "torch.utils._pytree.tree_flatten_with_path": "the same",
    "torch.autograd._unsafe_preserve_version_counter": "`audit` and `match` between a forward and its backward",
    "torch.utils._python_dispatch._get_current_dispatch_mode_stack": "PyTorch's counter of operations counts the ops",
    "torch.utils._pytree.tree_map_only": "the compiled engine copies what a step is given",
}

LATER = {
    # name: what fails without it. All of these are looked up in the call that uses them
    "torch._C._dynamo.eval_frame.set_code_exec_strategy": "`accelerate`",
    "torch._C._dynamo.eval_frame._FrameExecStrategy": "the same",
    "torch._C._dynamo.eval_frame._FrameAction.SKIP": "the same",
    "torch._dynamo.maybe_mark_dynamic": "the compiled engine, which runs only where it is asked for",
    "torch._inductor.codegen.common.get_scheduling_for_device": "the same",
    "torch._inductor.codegen.common.init_backend_registration": "the same",
    "torch._inductor.list_options": "the same",
    "torch.ops.mkldnn._is_mkldnn_bf16_supported": "autocast to bfloat16 on a CPU",
    "torch.ops.mkldnn._is_mkldnn_fp16_supported": "autocast to float16 on a CPU",
}


def check() -> None:
    """Refuses a PyTorch that layernorm does not run on.

    Raises:
        ImportError: it is too old, or lacks a name of `NEEDED`.
    """
    release = re.match(r"(\d+)\.(\d+)", torch.__version__)
    if release and tuple(map(int, release.groups())) < tuple(map(int, OLDEST.split("."))):
        raise ImportError(
            f"layernorm needs PyTorch {OLDEST} or newer, and found {torch.__version__}: pip install 'torch>={OLDEST}'"
        )
    for name, purpose in NEEDED.items():
        try:
            operator.attrgetter(name.removeprefix("torch."))(torch)
        except AttributeError:
            raise ImportError(
                f"layernorm uses {name}, which PyTorch {torch.__version__} does not have (for: {purpose}); "
                "take another version of PyTorch, or a newer layernorm"
            ) from None


check()
