// Batch norm in a sequence: at each step each unit is normalised over the rows of the batch that count in it.
//
//   y = gain * z_hat + bias,   z_hat = (z - mean) * r,   r = 1 / sqrt(var + eps)
//
// So all rows go through a step's parts together (recurrent.h), with the moments between the parts. These parts see z - mean,
// which stays in the place of z, and gain * r in the place of the gain. No unit needs another one before the next product:
// threads share out the units. The blueprint is equations/batch_norm.py.
#pragma once

#include "recurrent.h"
#include "scratch.h"

namespace LAYERNORM_ISA {

constexpr int OF_X = 0, OF_H = 1, OF_C = 2;  // in the order of PLACES
constexpr i64 SUMMED_ROWS = 64;         // of so many rows a sum is in order, of more it is a sum of sums
constexpr i64 UNITS_SHARED = 4 << 10;        // a step with fewer summed inputs stays on one thread

template <class T> struct BatchNorm {
    struct Place {
        T *mean, *var, *r, *gain;     // gain: that of the layer, times r
        T *later_dy, *later_product;  // gradients from later steps, which had too few rows for moments of their own
    };

    const Recurrent& n;
    Layer<T> layer, step;  // the layer, and what it is at one step
    Place place[PLACES];
    T *places, *sums;  // of `place`; [groups][VECTORS][Z]: the vectors' gradients at one step
    i64 groups;        // of SUMMED_ROWS rows
    i64 G, H, Hp, Z;

    explicit BatchNorm(const Recurrent& call) : n(call) {
        G = n.gates, H = n.H, Hp = round_up(H, PAD), Z = row_of_summed_inputs(call);
        groups = most(1, (n.B + SUMMED_ROWS - 1) / SUMMED_ROWS);
    }

    void lay(Cursor& c) {
        if (!n.batch_norm) return;
        c.take(places, PLACES * 6 * Z);
        c.take(sums, groups * VECTORS * Z);
    }

    bool split() const { return layer.split; }
    bool normalises(int k) const { return k == OF_C ? n.cell : n.norm & (k == OF_H ? NORMS_H : NORMS_X); }
    i64 gates_of(int k) const { return k == OF_C ? 1 : G; }
    T* gain_of(int k) const { return k == OF_X ? layer.p.gain_x : k == OF_H ? layer.p.gain_h : layer.p.gain_c; }
    // All but a candidate whose summed inputs are only known after r.
    i64 known_gates() const { return G == 3 && !layer.all && !split() ? 2 : G; }

    void begin(const Layer<T>& with) {
        if (!n.batch_norm) return;
        layer = step = with;
        memset(places, 0, PLACES * 6 * Z * sizeof(T));
        for (int k = 0; k < PLACES; ++k) {
            T* v = places + k * 6 * Z;
            place[k] = {v, v + Z, v + 2 * Z, v + 3 * Z, v + 4 * Z, v + 5 * Z};
            if (!normalises(k)) real_units(step, 0, gates_of(k), [&](i64 j, i64) { place[k].r[j] = 1; });
        }
        if (normalises(OF_X)) step.p.gain_x = place[OF_X].gain;
        if (normalises(OF_H)) step.p.gain_h = place[OF_H].gain;
        if (n.cell) step.p.gain_c = place[OF_C].gain;
    }

    // f(units) with `step` for some of the units, on all threads.
    template <class F> void share_units(ParallelFor run, i64 rows, const F& f) const {
        share(rows * G * Hp > UNITS_SHARED ? run : nullptr, Hp / PAD, [&](i64 from, i64 end) {
            Layer<T> units = step;
            units.from = from * PAD, units.to = end * PAD;
            f(units);
        });
    }
    // f(j, i) for the units of some gates: where they lie in a row, and where at a step in the moments' tensors.
    template <class F> void real_units(const Layer<T>& units, i64 first, i64 gates, const F& f) const {
        for (i64 g = first; g < first + gates; ++g)
            for (i64 u = units.from; u < least(units.to, H); ++u) f(g * Hp + u, g * H + u);
    }

    // The moments of a place at a step, as they were given, or made before.
    T* moments_at(void* const* tensors, int k, i64 t) const { return static_cast<T*>(tensors[k]) + t * gates_of(k) * H; }
    void read(const Layer<T>& units, int k, i64 t, i64 first, i64 gates) {
        const T *mean = moments_at(n.mean, k, t), *var = moments_at(n.var, k, t);
        real_units(units, first, gates, [&](i64 j, i64 i) { place[k].mean[j] = mean[i], place[k].var[j] = var[i]; });
    }
    // They are made; a step with fewer than two rows has those of the step before.
    template <class Row>
    void make(const Layer<T>& units, int k, i64 t, i64 first, i64 gates, i64 rows, const Row& row) {
        const Place& s = place[k];
        if (rows >= 2)
            units.pieces(first, gates, [&](i64 j, i64 count) {
                const i64 end = j + count;
                for (; j + 4 * LANES<T> <= end; j += 4 * LANES<T>) find<4>(s, j, rows, row);
                for (; j < end; j += LANES<T>) find<1>(s, j, rows, row);
            });
        T *mean = moments_at(n.mean, k, t), *var = moments_at(n.var, k, t);
        real_units(units, first, gates, [&](i64 j, i64 i) { mean[i] = s.mean[j], var[i] = s.var[j]; });
    }
    // The sums over rows [from, end) of N vectors; add(i, sums) adds those of row i.
    template <int N, class Add> static void sum_rows(i64 from, i64 end, V<T>* to, const Add& add) {
        V<T> sums[N] = {};
        if (end - from > SUMMED_ROWS) {
            const i64 half = from + round_up((end - from) / 2, SUMMED_ROWS);
            sum_rows<N>(from, half, to, add);
            sum_rows<N>(half, end, sums, add);
        } else {
            for (i64 i = from; i < end; ++i) add(i, sums);
        }
        for (int k = 0; k < N; ++k) to[k] += sums[k];
    }
    // Those of `W` vectors of units. What is left of the mean when it has been taken away is its rounding error.
    template <int W, class Row> static void find(const Place& s, i64 j, i64 rows, const Row& row) {
        const T each = T(1) / T(rows);
        V<T> mean[W] = {}, sums[2 * W] = {}, *error = sums, *square = sums + W;
        sum_rows<W>(0, rows, mean, [&](i64 i, V<T>* to) {
            for (int k = 0; k < W; ++k) to[k] += load(row(i) + j + k * LANES<T>);
        });
        for (int k = 0; k < W; ++k) mean[k] *= each;
        sum_rows<2 * W>(0, rows, sums, [&](i64 i, V<T>* to) {
            for (int k = 0; k < W; ++k) {
                const V<T> d = load(row(i) + j + k * LANES<T>) - mean[k];
                to[k] += d;
                to[W + k] += d * d;
            }
        });
        for (int k = 0; k < W; ++k) {
            error[k] *= each;
            const V<T> var = square[k] * each - error[k] * error[k];
            store<T>(s.mean + j + k * LANES<T>, mean[k] + error[k]);
            store<T>(s.var + j + k * LANES<T>, var < V<T>{} ? V<T>{} : var);  // NaN stays
        }
    }
    void fold(const Layer<T>& units, int k, i64 first, i64 gates) {
        const Place& s = place[k];
        const T* gain = gain_of(k);
        real_units(units, first, gates, [&](i64 j, i64) {
            s.r[j] = reciprocal_of(s.var[j], layer.norming);
            s.gain[j] = gain[j] * s.r[j];
        });
    }

    // --- forward ---

    template <class Row>
    void find_moments(const Layer<T>& units, int k, i64 t, i64 first, i64 gates, i64 rows, const Row& row) {
        if (n.batch_norm == GIVEN) read(units, k, t, first, gates);
        else make(units, k, t, first, gates, rows, row);
        fold(units, k, first, gates);
    }
    template <class Row>
    void normalise(const Layer<T>& units, int k, i64 t, i64 first, i64 gates, i64 rows, const Row& row) {
        if (!normalises(k)) return;
        find_moments(units, k, t, first, gates, rows, row);
        const T* mean = place[k].mean;
        for (i64 i = 0; i < rows; ++i)
            units.pieces(first, gates, [&](i64 from, i64 count) {
                for (i64 j = from; j < from + count; j += LANES<T>) store<T>(row(i) + j, load(row(i) + j) - load(mean + j));
            });
    }

    void forward(i64 t, const Forward<T>* w, i64 rows, ParallelFor run) {
        share_units(run, rows, [&](const Layer<T>& units) {
            split() ? forward<TWO>(units, t, w, rows) : forward<ONE>(units, t, w, rows);
        });
    }
    template <Streams IN> void forward(const Layer<T>& units, i64 t, const Forward<T>* w, i64 rows) {
        const auto x = [w](i64 i) { return w[i].zx; };
        const i64 known = known_gates();
        for (i64 i = 0; i < rows; ++i) units.add_streams(w[i], 0, known);
        normalise(units, OF_X, t, 0, known, rows, x);
        normalise(units, OF_H, t, 0, known, rows, [w](i64 i) { return w[i].zh; });
        if (G == 1) {
            for (i64 i = 0; i < rows; ++i) units.template rnn_out<IN>(w[i]);
        } else if (G == 3) {
            for (i64 i = 0; i < rows; ++i) {
                units.template gru_gates<IN>(w[i]);
                if (known < G) units.template candidate_streams<IN>(w[i]);
            }
            if (known < G) normalise(units, OF_X, t, known, 1, rows, x);
            for (i64 i = 0; i < rows; ++i) units.template gru_out<IN>(w[i]);
        } else {
            for (i64 i = 0; i < rows; ++i) units.template lstm_gates<IN>(w[i]);
            if (n.cell) normalise_cell(units, t, w, rows);
            for (i64 i = 0; i < rows; ++i) units.template lstm_out<IN>(w[i]);
        }
    }
    // c itself goes on to the next step.
    void normalise_cell(const Layer<T>& units, i64 t, const Forward<T>* w, i64 rows) {
        find_moments(units, OF_C, t, 0, 1, rows, [w](i64 i) { return w[i].c; });
        const T* mean = place[OF_C].mean;
        for (i64 i = 0; i < rows; ++i)
            for (i64 j = units.from; j < units.to; j += LANES<T>)
                store<T>(w[i].normalised_c + j, load(w[i].c + j) - load(mean + j));
    }

    // --- backward ---

    void read_step(i64 t) {
        for (int k = 0; k < PLACES; ++k)
            if (normalises(k)) read(step, k, t, 0, gates_of(k)), fold(step, k, 0, gates_of(k));
        memset(sums, 0, groups * VECTORS * Z * sizeof(T));
    }
    // Where a row adds: `place` is its place at the step.
    T* sums_of(i64 place) const { return sums + place / SUMMED_ROWS * VECTORS * Z; }
    // Brings the sums of all groups to the first one, two by two.
    void join_groups(const Layer<T>& units, T* of_first, i64 first, i64 gates) const {
        for (i64 apart = 1; apart < groups; apart *= 2)
            for (i64 g = 0; g + apart < groups; g += 2 * apart) {
                T *to = of_first + g * VECTORS * Z, *from = to + apart * VECTORS * Z;
                units.pieces(first, gates, [&](i64 begin, i64 count) {
                    for (i64 j = begin; j < begin + count; ++j) to[j] += from[j], from[j] = 0;
                });
            }
    }

    // What flows through the moments, in place:  d - gain * r * (mean(dy) + z_hat * mean(dy * z_hat)),  d = dy * gain * r.
    // of_dy, of_product: the sums of dy and of dy * (z - mean) over the rows.
    template <class D, class Row>
    void through_moments(const Layer<T>& units, int k, i64 first, i64 gates, i64 rows, const D& d, const Row& z,
        T* of_dy, T* of_product) {
        join_groups(units, of_dy, first, gates), join_groups(units, of_product, first, gates);
        if (!normalises(k) || n.batch_norm == GIVEN) return;
        const Place& s = place[k];
        units.pieces(first, gates, [&](i64 from, i64 count) {
            const i64 end = from + count;
            for (i64 j = from; j < end; ++j) s.later_dy[j] += of_dy[j], s.later_product[j] += of_product[j];
            if (rows < 2) return;
            for (i64 j = from; j < end; ++j) {
                const T per_r = !layer.norming.deviation ? s.r[j] : s.var[j] > 0 ? T(1) / sqrt(s.var[j]) : T(0);
                s.later_dy[j] *= s.gain[j] / T(rows);
                s.later_product[j] = s.later_product[j] * per_r * (s.gain[j] / T(rows)) * s.r[j];  // so none overflows
            }
            for (i64 i = 0; i < rows; ++i)
                for (i64 j = from; j < end; j += LANES<T>)
                    store<T>(d(i) + j, load(d(i) + j) - load(s.later_dy + j) - load(z(i) + j) * load(s.later_product + j));
            memset(s.later_dy + from, 0, count * sizeof(T));
            memset(s.later_product + from, 0, count * sizeof(T));
        });
    }

    // `of_step`: the vectors of `sums`. `all`: as many, added to.
    void backward(const Backward<T>* w, i64 rows, const Vectors<T>& of_step, T* all, ParallelFor run) {
        share_units(run, rows, [&](const Layer<T>& units) {
            split() ? backward<TWO>(units, w, rows, of_step) : backward<ONE>(units, w, rows, of_step);
            for (i64 v = 0; v < VECTORS; ++v) join_groups(units, sums + v * Z, 0, G);
            units.pieces(0, G, [&](i64 from, i64 count) {
                for (i64 j = from; j < from + count; ++j) {
                    of_step.gain_x[j] *= place[OF_X].r[j];
                    of_step.gain_h[j] *= place[OF_H].r[j];
                }
            });
            for (i64 j = units.from; j < units.to; ++j) of_step.gain_c[j] *= place[OF_C].r[j];
        });
        for (i64 j = 0; j < VECTORS * Z; ++j) all[j] += sums[j];
    }
    template <Streams IN>
    void backward(const Layer<T>& units, const Backward<T>* w, i64 rows, const Vectors<T>& of_step) {
        const auto through_x = [&](i64 first, i64 gates) {
            for (i64 i = 0; i < rows; ++i) units.template gates_backward<IN>(w + i, 1, first, gates);
            through_moments(units, OF_X, first, gates, rows, [w](i64 i) { return w[i].dzx; },
                [w](i64 i) { return w[i].zx; }, of_step.outside_x, of_step.gain_x);
        };
        if (G == 1) {
            for (i64 i = 0; i < rows; ++i) units.template rnn_out_backward<IN>(w[i]);
        } else if (G == 3) {
            for (i64 i = 0; i < rows; ++i) units.template gru_out_backward<IN>(w[i]);
        } else {
            for (i64 i = 0; i < rows; ++i) units.template lstm_out_backward<IN>(w[i]);
            through_moments(units, OF_C, 0, 1, rows, [&](i64 i) { return units.cell_gradient(w[i]); },
                [w](i64 i) { return w[i].saved_c; }, of_step.bias_c, of_step.gain_c);
            for (i64 i = 0; i < rows; ++i) units.template lstm_gates_backward<IN>(w[i]);
        }
        const i64 known = known_gates();
        if (known < G) {
            through_x(known, 1);
            for (i64 i = 0; i < rows; ++i) units.gated_backward(w[i]);
        }
        through_x(0, known);
        const auto copy = [&](T* to, const T* from, i64 gates) {
            units.pieces(0, gates, [&](i64 k, i64 count) { memcpy(to + k, from + k, count * sizeof(T)); });
        };
        if (IN == TWO) {  // one gradient for both streams, but for a GRU's candidate
            copy(of_step.outside_h, of_step.outside_x, G == 3 ? 2 : G);
            through_moments(units, OF_H, 0, G, rows, [w](i64 i) { return w[i].dzh; }, [w](i64 i) { return w[i].zh; },
                of_step.outside_h, of_step.gain_h);
        }
        for (i64 i = 0; i < rows; ++i) {
            if (known < G) copy(w[i].dzh, w[i].dzx, known);
            units.inside_backward(w[i]);
        }
    }
};

}  // namespace LAYERNORM_ISA
