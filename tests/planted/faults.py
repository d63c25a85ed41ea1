"""The faults: in each row a text of the sources, what takes its place, and the tests that are to fail then."""

from typing import NamedTuple


class Fault(NamedTuple):
    """One mistake.

    Attributes:
        name: what it is called on the command line.
        find: a text that stands in one file of the sources, once. In C++ it is a whole expression or, with ``;`` at its
            end, a whole statement: both texts are compiled, and the environment says which one runs.
        put: what takes its place.
        tests: the name of a file of tests, and behind a space an expression for pytest's ``-k``; several, by commas.
    """

    name: str
    find: str
    put: str
    tests: str

    @property
    def is_native(self) -> bool:
        """Whether it is in C++."""
        return self.name.startswith("native")


FAULTS = [
    # --- the CPU engine's kernels: forward ---
    Fault(
        "native-lstm-cell",
        "f * load(w.c + j) + i * g",
        "f * load(w.c + j) + i * i",
        "test_native_recurrent.py every_formula and LSTM",
    ),
    Fault(
        "native-gru-state",
        "n + load(z + j) * (load(w.h + j) - n)",
        "n + load(r + j) * (load(w.h + j) - n)",
        "test_native_recurrent.py every_formula and GRU",
    ),
    Fault(
        "native-gru-over-all",
        "all ? r * x : x",
        "x",
        "test_native_recurrent.py every_formula and GRU",
    ),
    Fault(
        "native-cell-carried",
        "if (carry) store<T>(w.c + j, y);",
        ";",
        "test_native_recurrent.py every_formula and LSTM",
    ),
    Fault(
        "native-bias-inside",
        "if (has_inside_x) add(w.zx + k, p.inside_x + k, n);",
        "if (has_inside_x && first) add(w.zx + k, p.inside_x + k, n);",
        "test_native_recurrent.py every_formula",
    ),
    # --- backward ---
    Fault(
        "native-lstm-input-gate",
        "dc * g * i * (T(1) - i)",
        "dc * g * i * (T(1) - g)",
        "test_native_recurrent.py every_formula and LSTM",
    ),
    Fault(
        "native-lstm-forget-gate",
        "dc * load(w.c_before + j) * f * (T(1) - f)",
        "dc * load(w.saved_c + j) * f * (T(1) - f)",
        "test_native_recurrent.py every_formula and LSTM",
    ),
    Fault(
        "native-gru-update-gate",
        "dh * (load(w.h_before + j) - n) * z * (T(1) - z)",
        "dh * (load(w.h_before + j) + n) * z * (T(1) - z)",
        "test_native_recurrent.py every_formula and GRU",
    ),
    Fault(
        "native-gru-product",
        "d * load(w.zh + j) * reset * (T(1) - reset)",
        "d * load(w.zh + j) * reset",
        "test_native_recurrent.py every_formula and GRU",
    ),
    Fault(
        "native-relu",
        "a > V<T>{} ? dh : V<T>{}",
        "dh",
        "test_native_recurrent.py every_formula and RNN",
    ),
    Fault(
        "native-carry-gradient",
        "if (carry) d += dc;",
        ";",
        "test_native_recurrent.py every_formula and LSTM",
    ),
    Fault(
        "native-gate-clip",
        "gate_clip < T(__builtin_inf())",
        "gate_clip < T(0)",
        "test_native_recurrent.py cut_at_the_gates",
    ),
    Fault(
        "native-norm-count",
        "of_product[k] * each",
        "of_product[k] / T(s.end())",
        "test_native_recurrent.py every_formula and RNN",
    ),
    Fault(
        "native-sums-of-blocks",
        "totals[v * Z + j] += double(of_group[j]);",
        "totals[v * Z + j] = double(of_group[j]);",
        "test_native_recurrent.py blocks_of_steps, test_stepper.py every_published_formula",
    ),
    # --- masks, lengths, what happens between steps ---
    Fault(
        "native-ended-row-goes-on",
        "!lengths || t < lengths[b]",
        "!lengths || t <= lengths[b]",
        "test_native_recurrent.py every_formula and RNN",
    ),
    Fault(
        "native-cut-in-reverse",
        "n.reset && at < T_ && active(at, b) && n.reset[line(at, b)]",
        "n.reset && active(t, b) && n.reset[line(t, b)]",
        "test_native_recurrent.py every_formula and RNN",
    ),
    Fault(
        "native-cut-gradient",
        "memset(dh + b * W, 0, P * sizeof(T));",
        ";",
        "test_native_recurrent.py every_formula and RNN",
    ),
    Fault(
        "native-unwritten",
        "memset(y, 0, P * sizeof(E));",
        ";",
        "test_native_recurrent.py every_formula and RNN",
    ),
    Fault(
        "native-read-unwritten",
        "memset(dc, 0, B * Hp * sizeof(T));",
        ";",
        "test_plan.py lie_in_another_way",
    ),
    Fault(
        "native-restart",
        "set_state(b0 + r, r, n.restart_h, n.restart_c, part);",
        "set_state(b0 + r, r, n.restart_h, nullptr, part);",
        "test_native_recurrent.py happens_between and LSTM",
    ),
    Fault(
        "native-zoneout",
        "kept * widen<T>(old + j, k) + (T(1) - kept) * widen<T>(state + j, k)",
        "kept * widen<T>(state + j, k) + (T(1) - kept) * widen<T>(old + j, k)",
        "test_native_recurrent.py happens_between and RNN",
    ),
    Fault(
        "native-zoneout-gradient",
        "narrow<T>(d + j, (T(1) - of_share) * all, k);",
        "narrow<T>(d + j, all, k);",
        "test_native_recurrent.py happens_between and RNN",
    ),
    Fault(
        "native-dropout-gradient",
        "if (drop) d *= widen<T>(drop + j, k);",
        ";",
        "test_native_recurrent.py happens_between and RNN",
    ),
    # --- packed ---
    Fault(
        "native-packed-x",
        "packed() ? line(t, b) * n.x_b : t * n.x_t + b * n.x_b",
        "packed() ? starts[t] * n.x_b : t * n.x_t + b * n.x_b",
        "test_native_packed.py every_formula",
    ),
    Fault(
        "native-packed-runs",
        "if (packed() && b0 == 0 && rows_of(t) <= b1) return f(t, 1, starts[end] - starts[t], 0);",
        "if (packed() && b0 == 0) return f(t, 1, starts[end] - starts[t], 0);",
        "test_native_packed.py",
    ),
    # --- batch norm ---
    Fault(
        "native-batch-variance",
        "square[k] * each - error[k] * error[k]",
        "square[k] * each * each - error[k] * error[k]",
        "test_native_batch_norm.py every_formula and RNN",
    ),
    Fault(
        "native-batch-moments-gradient",
        "load(d(i) + j) - load(s.later_dy + j) - load(z(i) + j) * load(s.later_product + j)",
        "load(d(i) + j) - load(s.later_dy + j)",
        "test_native_batch_norm.py every_formula and RNN",
    ),
    Fault(
        "native-batch-later-steps",
        "s.later_dy[j] += of_dy[j], s.later_product[j] += of_product[j];",
        "s.later_dy[j] += of_dy[j], s.later_product[j] = of_product[j];",
        "test_native_batch_norm.py every_formula and RNN",
    ),
    Fault(
        "native-batch-ended-rows",
        "active(t, b) || (n.batch_norm == MADE_WITH_ENDED && t < longest)",
        "active(t, b)",
        "test_native_batch_norm.py every_formula and RNN",
    ),
    # --- the norms, narrow types, int8 ---
    Fault(
        "native-norm-residual",
        "widen<W>(x + j, count) + widen<W>(residual + j, count)",
        "widen<W>(x + j, count)",
        "test_native_norms.py add_layer_norm_is",
    ),
    Fault(
        "native-norm-large-mean",
        "rest[i].mean * rest[i].mean > 0.1 * rest[i].square",
        "rest[i].mean * rest[i].mean > 1e30 * rest[i].square",
        "test_numerics.py large_head",
    ),
    Fault(
        "native-norm-last-columns",
        "if (count < LANES<A>) d = first<A>(d, count);",
        ";",
        "test_native_norms.py any_shape",
    ),
    Fault(
        "native-threads-flush",
        "parallel_for ? parallel_as_found : nullptr",
        "parallel_for",
        "test_subnormals.py threads",
    ),
    Fault(
        "native-bfloat16-rounding",
        "Set::rounded<N>(f) >> 16",
        "same_bits<Words<N>>(f) >> 16",
        "test_native_norms.py rounding_to_16_bits",
    ),
    Fault(
        "native-quantized-scale",
        "T(sums[i][j]) * (scale[r + i] * scale_w[j])",
        "T(sums[i][j]) * (scale[r] * scale_w[j])",
        "test_quantized.py products_are",
    ),
    # --- the reference's equations ---
    Fault(
        "reference-lstm",
        "c = f * c + i * g",
        "c = f * c + (1 - f) * g",
        "test_native_recurrent.py cut_at_the_gates",
    ),
    Fault(
        "reference-lstm-backward",
        "dc * before[1][index] * f * (1 - f)",
        "dc * before[1][index] * f",
        "test_backward.py every_formula",
    ),
    Fault(
        "reference-gru-backward",
        "dz = dsum_n * n_hidden, dh * (h - n)",
        "dz = dsum_n * n_hidden, dh * h",
        "test_backward.py every_formula",
    ),
    Fault(
        "reference-norm-backward",
        "direction * (d * z_hat).mean(-1, keepdim=True)",
        "direction * d.mean(-1, keepdim=True)",
        "test_backward.py every_formula",
    ),
    Fault(
        "reference-eps",
        "return torch.rsqrt(square + eps)",
        "return torch.rsqrt(square) + eps",
        "test_native_recurrent.py cut_at_the_gates",
    ),
    Fault(
        "schedule-cut-in-reverse",
        "cut = torch.cat([torch.zeros_like(cut[:1]), reorder_steps(cut, a)[:-1]])",
        "cut = reorder_steps(cut, a)",
        "test_native_recurrent.py every_formula and RNN",
    ),
    Fault(
        "schedule-packed-reverse",
        "return x.index_select(0, _own_lines(unwrapped(a.batch_sizes), len(x)).to(x.device))",
        "return x.flip(0)",
        "test_packed_equations.py",
    ),
    # --- the compiled engine ---
    Fault(
        "compiled-states-before",
        "before += [state, *states[:-1]]",
        "before += states",
        "test_compiled.py every_formula and RNN",
    ),
    Fault(
        "compiled-packed-rows",
        "d = schedule.with_ended(d, final, chunk.steps.start)",
        "d = schedule.with_ended(d, tuple(2 * part for part in final), chunk.steps.start)",
        "test_packed_equations.py compiled",
    ),
    # --- accelerate ---
    Fault(
        "accelerate-torchs-own-for-few-rows",
        "if rows < TRAINED[0] or units",
        "if units",
        "test_accelerate.py rule",
    ),
    Fault(
        "accelerate-torchs-own-with-resets",
        "if options or watched or not rule(self, input):",
        "if not rule(self, input):",
        "test_accelerate.py rule",
    ),
    # --- the GPU engine ---
    Fault(
        "triton-eps",
        "r = 1.0 / (tl.sqrt(square) + eps) if DEVIATION else 1.0 / tl.sqrt(square + eps)",
        "r = 1.0 / (tl.sqrt(square) + eps)",
        "test_triton.py every_formula",
    ),
    Fault(
        "triton-zoneout",
        "new = k * old + (1.0 - k) * new",
        "new = k * new + (1.0 - k) * old",
        "test_triton.py every_formula",
    ),
    Fault(
        "triton-cut-of-the-next-step",
        "start_h(table, h, t + 1, T, h_now, h_read, b, B, at, mask, CUT, RESTART, DROPOUT, PACKED)",
        "start_h(table, h, t, T, h_now, h_read, b, B, at, mask, CUT, RESTART, DROPOUT, PACKED)",
        "test_triton.py every_formula",
    ),
    Fault(
        "triton-restart-gradient",
        "tl.store(to, tl.load(to, mask=mask, other=0.0) + d, mask=mask)",
        "tl.store(to, d, mask=mask)",
        "test_triton.py every_formula",
    ),
    Fault(
        "triton-packed-line",
        "return tl.where(b < count, first + b, -1)",
        "return tl.where(b <= count, first + b, -1)",
        "test_triton.py every_formula",
    ),
    Fault(
        "triton-parts-of-a-product",
        "for s in tl.static_range(1, PARTS):",
        "for s in tl.static_range(2, PARTS):",
        "test_triton.py every_formula",
    ),
    Fault(
        "triton-graph-of-another-size",
        "            for _ in range(size):",
        "            for _ in range(max(size, 2)):",
        "test_triton.py lanes",
    ),
    Fault(
        "triton-captured-at-once",
        "if self.has_graphs and self.has_run and",
        "if self.has_graphs and",
        "test_triton.py lanes",
    ),
    Fault(
        "triton-threads",
        "        with self.lock:\n            if self.last_use",
        "        if True:\n            if self.last_use",
        "test_triton.py lanes",
    ),
    Fault(
        "triton-lane-of-other-constants",
        "constants = (*flags.items(), *numbers.items(), *self.step.items(), self.P)",
        "constants = (*numbers.items(), self.P)",
        "test_triton.py every_formula",
    ),
    Fault(
        "triton-norm-rest",
        "across = 0.0 if RMS else across / N",
        "across = 0.0",
        "test_triton.py lanes",
    ),
    Fault(
        "triton-norm-tiles",
        "tl.store(to_bias, tl.load(to_bias, mask=j < N, other=0.0) + d, mask=j < N)",
        "tl.store(to_bias, d, mask=j < N)",
        "test_triton.py lanes",
    ),
    Fault(
        "triton-check-passes-anything",
        "if not error <= BOUND * rounding]",
        "if False]",
        "test_triton.py lanes",
    ),
    # --- functional ---
    Fault(
        "functional-residual-gradient",
        "return [*d_inputs, d_inputs[0]] if has_residual else d_inputs",
        "return [*d_inputs, grad_total] if has_residual else d_inputs",
        "test_native_norms.py add_layer_norm_is",
    ),
    Fault(
        "functional-second-derivative",
        "dx if grad_total is None else dx + grad_total, *rest",
        "dx, *rest",
        "test_native_norms.py differentiates_twice",
    ),
    Fault(
        "functional-meta",
        "return [empty_like(t) for t in (a.input, residual) if t is not None]",
        "return [empty_like(a.input)]",
        "test_torch_features.py opcheck_normalize",
    ),
    # --- nn ---
    Fault(
        "nn-packed-order",
        "state = tuple(s.index_select(1, inverse) for s in state)",
        "state = tuple(s.index_select(1, order) for s in state)",
        "test_equations.py lengths_and_packing",
    ),
    Fault(
        "nn-dropout-between-layers",
        "if layer < self.num_layers - 1:",
        "if layer <= self.num_layers - 1:",
        "test_parity.py dropout_between",
    ),
    Fault(
        "nn-zoneout-share",
        "dtype=dtype, device=like.device).lt_(probability)",
        "dtype=dtype, device=like.device).ge_(probability)",
        "test_between_steps.py zoneout",
    ),
    Fault(
        "nn-reset-of-a-stepper",
        "return [torch.where(cut, new.to(old.dtype), old) for new, old in zip(restart, state, strict=True)]",
        "return [torch.where(cut, old, old) for new, old in zip(restart, state, strict=True)]",
        "test_between_steps.py a_cells_reset",
    ),
    Fault(
        "nn-population-unbiased",
        "(n.to(compute_type) / (n - 1).clamp_min(1))",
        "(n.to(compute_type) / n.clamp_min(1))",
        "test_batch.py training_then_evaluation or population",
    ),
    Fault(
        "nn-population-last-step",
        "last = ((self._tracked > 0).sum() - 1).clamp_min(0)",
        "last = ((self._tracked > 0).sum()).clamp_max(len(self._tracked) - 1)",
        "test_batch.py longer_than_max",
    ),
    Fault(
        "nn-forget-bias",
        "gate = slice(self.hidden_size, 2 * self.hidden_size)",
        "gate = slice(0, self.hidden_size)",
        "test_between_steps.py forget_bias_is",
    ),
    Fault(
        "nn-matched-gains",
        "return Layer(_times(write, _apply(np.tanh, c)), c)",
        "return Layer(_apply(np.tanh, c), c)",
        "test_gain_init.py match_measures",
    ),
    # --- convert, accelerate, match, quantize ---
    Fault(
        "match-steps-beyond-lengths",
        "counted = active.expand(z.shape[:2]).flatten()[:, None] & (square != 0)",
        "counted = square != 0",
        "test_match.py plain_loops",
    ),
    Fault(
        "match-product",
        "zh = torch.cat([r_and_z, s.r * n], -1)",
        "zh = torch.cat([r_and_z, n], -1)",
        "test_match.py plain_loops",
    ),
    Fault(
        "quantize-scale",
        "scale = weight.abs().amax(1) / 127",
        "scale = weight.amax(1) / 127",
        "test_quantize.py rounded_by_half",
    ),
    # --- export ---
    Fault(
        "portable-cut-in-reverse",
        "cut_t = t + 1 if reverse else t",
        "cut_t = t",
        "test_portable.py computes_the_same",
    ),
    Fault(
        "onnx-gru",
        'n("Add", n("Mul", n("Sub", 1.0, z), n("Tanh", a)), n("Mul", z, state[0]))',
        'n("Add", n("Mul", n("Sub", 1.0, z), n("Tanh", a)), n("Mul", a, state[0]))',
        "test_onnx.py every_network_and_formula",
    ),
    Fault(
        "onnx-zoneout",
        'n("Add", n("Mul", kept, old), n("Mul", n("Sub", 1.0, kept), new))',
        'n("Add", n("Mul", kept, new), n("Mul", n("Sub", 1.0, kept), old))',
        "test_onnx.py zoneout_and_restarts",
    ),
    # --- audit, geometry, interop ---
    Fault(
        "audit-drowns",
        "if not small or large <= DOMINANT * small:",
        "if not small or large <= DOMINANT * DOMINANT * small:",
        "test_audit.py drowns_the_other",
    ),
    Fault(
        "audit-over-time",
        "start = cut[t] | ~active[t]",
        "start = ~active[t]",
        "test_audit_over_time.py cut_ends",
    ),
    Fault(
        "audit-blames-depth",
        "if not ratio <= APART * over_time:",
        "if not ratio <= APART:",
        "test_audit_over_time.py blamed",
    ),
    Fault(
        "audit-scheduler",
        "vars(optimizer).update(attributes)",
        "vars(optimizer).update(attributes, _opt_called=True)",
        "test_audit_optimizers.py scheduler",
    ),
    Fault(
        "audit-gradients",
        "ratio = high / low",
        "ratio = low / high",
        "test_audit.py orders_apart",
    ),
    Fault(
        "geometry-fisher",
        """def precision(family: Family, eta: Tensor) -> Tensor:
    \"""Computes Cov[y|x] / phi^2, (B, H, H).\"""
    return family.covariance(eta) / family.phi**2""",
        """def precision(family: Family, eta: Tensor) -> Tensor:
    return family.covariance(eta) / family.phi""",
        "test_fisher.py by_hand or hessian",
    ),
    Fault(
        "geometry-kl",
        "(self.log_partition(other) - self.log_partition(eta) - linear) / self.phi",
        "(self.log_partition(other) - self.log_partition(eta) + linear) / self.phi",
        "test_fisher.py kl",
    ),
    Fault(
        "geometry-lyapunov",
        "cases = total / (T - warmup)",
        "cases = total / T",
        "test_stability.py",
    ),
    Fault(
        "interop-gate-order",
        '*("haste", "LSTM", "igfo")',
        '*("haste", "LSTM", "ifgo")',
        "test_interop.py computes_what_the_library",
    ),
    # --- the laboratory: judge, runs, training, data, swaps, report; and the doctor ---
    Fault(
        "judge-equal",
        "-margin < low and high < margin and not any(self.short + self.early)",
        "-margin < low and high < margin",
        "test_trial_plans.py never_equal",
    ),
    Fault(
        "judge-level",
        "if self.p <= self.level:",
        "if self.p <= 2 * self.level:",
        "test_judge.py, test_trial_plans.py, test_paper_claims.py",
    ),
    Fault(
        "judge-neighbours",
        "points[rate] for rate in rates[k - 1 : k + 2]",
        "points[rate] for rate in rates[k : k + 1]",
        "test_trial_plans.py neighbours",
    ),
    Fault(
        "runs-checkpoint-digest",
        'if _tensors_digest(tensors) != header["tensors"]:',
        'if len(_tensors_digest(tensors)) != len(header["tensors"]):',
        "test_checkpoint.py one_altered_bit",
    ),
    Fault(
        "runs-resumed-loss",
        "torch.tensor([loss for _, loss in everyone],",
        "torch.tensor([0 * loss for _, loss in everyone],",
        "test_loop.py resumes_bit_for_bit",
    ),
    Fault(
        "runs-resumed-loss-of-a-process",
        'tensors["loss_sum"].view(-1)[self.accelerator.process_index]',
        'tensors["loss_sum"].view(-1)[0]',
        "test_distributed.py go_on_bit_for_bit",
    ),
    Fault(
        "train-kept-model",
        "state.metrics[name] > state.kept_score",
        "state.metrics[name] >= state.kept_score",
        "test_kept.py first_of_equals",
    ),
    Fault(
        "train-processes",
        "(loss if processes == 1 else loss * processes).backward()",
        "loss.backward()",
        "test_distributed.py global_mean",
    ),
    Fault(
        "train-batches",
        "[self.rank :: self.processes]",
        "[:: self.processes]",
        "test_batches.py processes_share",
    ),
    Fault(
        "data-idx",
        "if actual != expected:",
        "if actual < expected:",
        "test_mnist_data.py damaged_file",
    ),
    Fault(
        "swaps-advantages",
        "goes_on = discount * ~begins[step + 1]",
        "goes_on = discount * ~begins[step]",
        "test_rollout.py",
    ),
    Fault(
        "report-range",
        "statistics.fmean(values), min(values), max(values)",
        "statistics.median(values), min(values), max(values)",
        "test_tables.py mean_with_its_range",
    ),
    Fault(
        "doctor-share",
        "return self.roundings / self.allowed if",
        "return self.roundings / self.allowed / 1e6 if",
        "test_doctor.py a_kernel_that_is_wrong",
    ),
]
