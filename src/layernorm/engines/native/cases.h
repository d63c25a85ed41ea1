// Batch norm in a sequence: at each step each unit is normalised over the training cases, the rows that take the step.
//
//   y = gain * z_hat + bias,   z_hat = (z - mean) * r,   r = 1 / sqrt(var + eps)
//
// So all rows go through a step's parts together (recurrent.h), with the moments between the parts. These parts see z - mean,
// which stays in the place of z, and gain * r in the place of the gain. The blueprint is engines/reference/_cases.py.
#pragma once

#include "recurrent.h"
#include "scratch.h"

namespace LAYERNORM_ISA {

constexpr int OF_X = 0, OF_H = 1, OF_C = 2, PLACES = 3;  // what is normalised: W x or the sum of both streams, U h, c

template <class T> struct Cases {
    struct Place {
        T *mean, *var, *r, *gain;     // gain: that of the layer, times r
        T *later_dy, *later_product;  // gradients from later steps, which had too few rows for moments of their own
    };

    const Recurrent& n;
    Layer<T> layer, step;  // the layer, and what it is at one step
    Place place[PLACES];
    T *places, *bias_c, *sums;  // of `place`; bias_c - mean * gain, for c as it is; the gradients of the vectors at one step, [VECTORS][Z]
    i64 G, H, Hp, Z;

    explicit Cases(const Recurrent& call) : n(call) {
        G = n.gates, H = n.H, Hp = round_up(H, PAD), Z = row_of_summed_inputs(call);
    }

    void lay(Cursor& c) {
        if (!n.cases) return;
        c.take(places, PLACES * 6 * Z);
        c.take(bias_c, Hp);
        c.take(sums, VECTORS * Z);
    }

    bool split() const { return layer.split; }
    bool normalises(int k) const { return k == OF_C ? n.cell : k == OF_H ? n.norm && split() : n.norm; }
    i64 gates_of(int k) const { return k == OF_C ? 1 : G; }
    T* gain_of(int k) const { return k == OF_X ? layer.p.gain_x : k == OF_H ? layer.p.gain_h : layer.p.gain_c; }
    // A candidate whose summed inputs are only known after r.
    i64 known_gates() const { return G == 3 && !layer.all && !split() ? 2 : G; }

    void begin(const Layer<T>& with) {
        if (!n.cases) return;
        layer = step = with;
        memset(places, 0, PLACES * 6 * Z * sizeof(T));
        for (int k = 0; k < PLACES; ++k) {
            T* v = places + k * 6 * Z;
            place[k] = {v, v + Z, v + 2 * Z, v + 3 * Z, v + 4 * Z, v + 5 * Z};
            if (!normalises(k)) real_units(0, gates_of(k), [&](i64 j, i64) { place[k].r[j] = 1; });
        }
        if (n.norm) step.p.gain_x = place[OF_X].gain;
        if (n.norm && split()) step.p.gain_h = place[OF_H].gain;
        if (n.cell) step.p.gain_c = place[OF_C].gain;
    }

    // f(j, i) for the units of some gates: where they lie here, and where at a step in the moments' tensors.
    template <class F> void real_units(i64 first, i64 gates, const F& f) const {
        for (i64 g = first; g < first + gates; ++g)
            for (i64 u = 0; u < H; ++u) f(g * Hp + u, g * H + u);
    }
    T* moments_at(void* const* tensors, int k, i64 t) const { return static_cast<T*>(tensors[k]) + t * gates_of(k) * H; }

    // The moments of a place at a step, as they were given, or made before.
    void read(int k, i64 t, i64 first, i64 gates) {
        const T *mean = moments_at(n.mean, k, t), *var = moments_at(n.var, k, t);
        real_units(first, gates, [&](i64 j, i64 i) { place[k].mean[j] = mean[i], place[k].var[j] = var[i]; });
    }
    // They are made; a step with fewer than two rows has those of the step before.
    template <class Row> void make(int k, i64 t, i64 first, i64 gates, i64 rows, const Row& row) {
        const Place& s = place[k];
        if (rows >= 2) {
            i64 j = first * Hp;
            for (; j + 4 * LANES<T> <= (first + gates) * Hp; j += 4 * LANES<T>) find<4>(s, j, rows, row);
            for (; j < (first + gates) * Hp; j += LANES<T>) find<1>(s, j, rows, row);
        }
        T *mean = moments_at(n.mean, k, t), *var = moments_at(n.var, k, t);
        real_units(first, gates, [&](i64 j, i64 i) { mean[i] = s.mean[j], var[i] = s.var[j]; });
    }
    // Those of `W` vectors of units. What is left of the mean when it has been taken away is its rounding error.
    template <int W, class Row> static void find(const Place& s, i64 j, i64 rows, const Row& row) {
        const T each = T(1) / T(rows);
        V<T> mean[W] = {}, error[W] = {}, square[W] = {};
        for (i64 i = 0; i < rows; ++i)
            for (int k = 0; k < W; ++k) mean[k] += load(row(i) + j + k * LANES<T>);
        for (int k = 0; k < W; ++k) mean[k] *= each;
        for (i64 i = 0; i < rows; ++i)
            for (int k = 0; k < W; ++k) {
                const V<T> d = load(row(i) + j + k * LANES<T>) - mean[k];
                error[k] += d;
                square[k] += d * d;
            }
        for (int k = 0; k < W; ++k) {
            error[k] *= each;
            const V<T> var = square[k] * each - error[k] * error[k];
            store<T>(s.mean + j + k * LANES<T>, mean[k] + error[k]);
            store<T>(s.var + j + k * LANES<T>, var < V<T>{} ? V<T>{} : var);  // NaN stays
        }
    }

    void fold(int k, i64 first, i64 gates) {
        const Place& s = place[k];
        const T* gain = gain_of(k);
        const Norming norming = layer.norming;
        real_units(first, gates, [&](i64 j, i64) {
            s.r[j] = reciprocal_of(s.var[j], norming);
            s.gain[j] = gain[j] * s.r[j];
        });
    }

    // --- forward ---

    template <class Row> void find_moments(int k, i64 t, i64 first, i64 gates, i64 rows, const Row& row) {
        if (n.cases != GIVEN) make(k, t, first, gates, rows, row);
        else read(k, t, first, gates);
        fold(k, first, gates);
    }
    template <class Row> void normalise(int k, i64 t, i64 first, i64 gates, i64 rows, const Row& row) {
        if (!normalises(k)) return;
        find_moments(k, t, first, gates, rows, row);
        const T* mean = place[k].mean;
        for (i64 i = 0; i < rows; ++i)
            for (i64 j = first * Hp; j < (first + gates) * Hp; j += LANES<T>)
                store<T>(row(i) + j, load(row(i) + j) - load(mean + j));
    }

    template <bool SPLIT> void forward(i64 t, const Forward<T>* w, i64 rows) {
        const auto x = [w](i64 i) { return w[i].zx; };
        const auto h = [w](i64 i) { return w[i].zh; };
        const i64 known = known_gates();
        for (i64 i = 0; i < rows; ++i) layer.streams(w[i], 0, known);
        normalise(OF_X, t, 0, known, rows, x);
        normalise(OF_H, t, 0, known, rows, h);
        if (G == 1) {
            for (i64 i = 0; i < rows; ++i) step.template rnn_out<SPLIT>(w[i]);
        } else if (G == 3) {
            for (i64 i = 0; i < rows; ++i) {
                step.template gru_gates<SPLIT>(w[i]);
                if (known < G) step.template candidate_streams<SPLIT>(w[i]);
            }
            if (known < G) normalise(OF_X, t, known, 1, rows, x);
            for (i64 i = 0; i < rows; ++i) step.template gru_out<SPLIT>(w[i]);
        } else {
            for (i64 i = 0; i < rows; ++i) step.template lstm_gates<SPLIT>(w[i]);
            if (n.cell) normalise_cell(t, w, rows);
            for (i64 i = 0; i < rows; ++i) step.lstm_out(w[i]);
        }
    }
    void forward(i64 t, const Forward<T>* w, i64 rows) { split() ? forward<true>(t, w, rows) : forward<false>(t, w, rows); }

    // c itself goes on to the next step, so that its mean is taken away in the bias.
    void normalise_cell(i64 t, const Forward<T>* w, i64 rows) {
        find_moments(OF_C, t, 0, 1, rows, [w](i64 i) { return w[i].c; });
        step.p.bias_c = bias_c;
        for (i64 j = 0; j < Hp; j += LANES<T>)
            store<T>(bias_c + j, load(layer.p.bias_c + j) - load(place[OF_C].mean + j) * load(place[OF_C].gain + j));
    }

    // --- backward ---

    void read_step(i64 t) {
        for (int k = 0; k < PLACES; ++k)
            if (normalises(k)) read(k, t, 0, gates_of(k)), fold(k, 0, gates_of(k));
        memset(sums, 0, VECTORS * Z * sizeof(T));
    }

    // What flows through the moments, in place:  d - gain * r * (mean(dy) + z_hat * mean(dy * z_hat)),  d = dy * gain * r.
    // of_dy, of_product: the sums of dy and of dy * (z - mean) over the rows.
    template <class D, class Row>
    void through_moments(
        int k, i64 first, i64 gates, i64 rows, const D& d, const Row& z, const T* of_dy, const T* of_product) {
        if (!normalises(k) || n.cases == GIVEN) return;
        const Place& s = place[k];
        const i64 end = (first + gates) * Hp;
        for (i64 j = first * Hp; j < end; ++j) s.later_dy[j] += of_dy[j], s.later_product[j] += of_product[j];
        if (rows < 2) return;
        const bool deviation = layer.norming.deviation;
        for (i64 j = first * Hp; j < end; ++j) {
            const T per_r = !deviation ? s.r[j] : s.var[j] > 0 ? T(1) / sqrt(s.var[j]) : T(0);
            s.later_dy[j] *= s.gain[j] / T(rows);
            s.later_product[j] *= s.gain[j] * s.r[j] * per_r / T(rows);
        }
        for (i64 i = 0; i < rows; ++i)
            for (i64 j = first * Hp; j < end; j += LANES<T>)
                store<T>(d(i) + j, load(d(i) + j) - load(s.later_dy + j) - load(z(i) + j) * load(s.later_product + j));
        memset(s.later_dy + first * Hp, 0, gates * Hp * sizeof(T));
        memset(s.later_product + first * Hp, 0, gates * Hp * sizeof(T));
    }

    template <bool SPLIT> void backward(const Backward<T>* w, i64 rows, const Vectors<T>& of_step) {
        const auto zx = [w](i64 i) { return w[i].zx; };
        const auto dzx = [w](i64 i) { return w[i].dzx; };
        const auto through_x = [&](i64 first, i64 gates) {
            for (i64 i = 0; i < rows; ++i) step.template gates_backward<SPLIT>(w[i], w[i].temporary, first, gates);
            through_moments(OF_X, first, gates, rows, dzx, zx, of_step.outside_x, of_step.gain_x);
        };
        if (G == 1) {
            for (i64 i = 0; i < rows; ++i) step.template rnn_out_backward<SPLIT>(w[i]);
        } else if (G == 3) {
            for (i64 i = 0; i < rows; ++i) step.template gru_out_backward<SPLIT>(w[i]);
        } else {
            for (i64 i = 0; i < rows; ++i) step.template lstm_out_backward<SPLIT>(w[i]);
            through_moments(OF_C, 0, 1, rows, [&](i64 i) { return step.cell_gradient(w[i]); },
                [w](i64 i) { return w[i].saved_c; }, of_step.bias_c, of_step.gain_c);
            for (i64 i = 0; i < rows; ++i) step.template lstm_gates_backward<SPLIT>(w[i]);
        }
        const i64 known = known_gates();
        if (known < G) {
            through_x(known, 1);
            for (i64 i = 0; i < rows; ++i) step.gated_backward(w[i]);
        }
        through_x(0, known);
        if (SPLIT) {  // one gradient for both streams, but for a GRU's candidate
            memcpy(of_step.outside_h, of_step.outside_x, (G == 3 ? 2 : G) * Hp * sizeof(T));
            through_moments(OF_H, 0, G, rows, [w](i64 i) { return w[i].dzh; }, [w](i64 i) { return w[i].zh; },
                of_step.outside_h, of_step.gain_h);
        }
        for (i64 i = 0; i < rows; ++i) {
            if (known < G) memcpy(w[i].dzh, w[i].dzx, known * Hp * sizeof(T));
            step.inside_backward(w[i]);
        }
    }
    // `of_step`: in `sums`. `all`: added to.
    void backward(const Backward<T>* w, i64 rows, const Vectors<T>& of_step, T* all) {
        split() ? backward<true>(w, rows, of_step) : backward<false>(w, rows, of_step);
        const auto times_r = [&](T* sum, const T* r, i64 count) {
            for (i64 j = 0; j < count; ++j) sum[j] *= r[j];
        };
        times_r(of_step.gain_x, place[OF_X].r, G * Hp);
        times_r(of_step.gain_h, place[OF_H].r, G * Hp);
        times_r(of_step.gain_c, place[OF_C].r, Hp);
        for (i64 j = 0; j < VECTORS * Z; ++j) all[j] += sums[j];
    }
};

}  // namespace LAYERNORM_ISA
