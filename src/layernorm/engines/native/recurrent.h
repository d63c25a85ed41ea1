// A recurrent layer in one direction over a whole sequence. This file: its equations for one training case at one step
// (a row), forward and backward, for each network; sequence.h, forward.h and backward.h: the order of steps, products and rows.
//
// The blueprint is equations/{rnn,lstm,gru}.py, whose names are kept. Summed inputs are kept as they are, and
// normalised where they are used: z_hat = (z - mean) * r. Several rows go through each part of a step together, so that
// the processor works on one while it waits for another.
#pragma once

#include "sites.h"

namespace LAYERNORM_ISA {

// The parameters that are vectors over the units, a block of Hp for each gate, 0 beyond H (a missing gain is 1).
template <class T> struct Vectors {
    T *gain_x, *gain_h, *inside_x, *inside_h, *outside_x, *outside_h, *gain_c, *bias_c;
};

// The statistics of one row at one step: of each gate's W x and U h, and of c. What is not normalised has mean 0, r 1.
template <class T> struct RowStatistics {
    Statistics<T> x[4], h[4], c;
    static RowStatistics none() {
        constexpr Statistics<T> one{0, 1};
        return {{one, one, one, one}, {one, one, one, one}, one};
    }
};

// What becomes of W x and U h before the gates: they are added, their sum is normalised, or each of them is.
enum Streams { ADDED, ONE, TWO };

// One row. zx, zh: its summed inputs [G*Hp]; with one stream their sum is left in zx. Where they are only added the gates
// are left there, which are all that the backward needs. temporary: [4*Hp].
template <class T> struct Forward {
    T *zx, *zh;
    T *c, *h;  // [Hp], the state before and after
    T* normalised_c;  // what is normalised of c: itself, or under batch norm c - mean
    T* saved_c;
    RowStatistics<T>* statistics;
    T* temporary;
};

template <class T> struct Backward {
    const T *zx, *zh;  // as the forward left them; of a GRU with one stream zh is U_n h alone
    const T *h_before, *c_before, *saved_c;
    const RowStatistics<T>* statistics;
    T *dh, *dc;        // in: of the state after the step; out: of the state before it, what goes through W_hh apart
    T *dzx, *dzh;      // out; one and the same for a network in which W x and U h are only added
    T* m;              // out: what is projected, or null
    T* temporary;      // [8*Hp], the last Hp for m
    Vectors<T> sums;   // of the parameters' gradients, added to
};

template <class T> INLINE void add(T* z, const T* more, i64 n) {
    for (i64 j = 0; j < n; j += LANES<T>) store<T>(z + j, load(z + j) + load(more + j));
}
template <class T> INLINE void add(T* z, V<T> more) { store<T>(z, load(z) + more); }

template <class T> struct Layer {
    i64 G, H, Hp;
    i64 from, to;  // the units of each gate that are looked at; what is normalised over the units needs all, 0 to Hp
    Streams streams;
    bool split, per_gate, all, norm_x, norm_h, carry, cell, relu, has_inside_x, has_inside_h;
    Norming norming;
    T forget_bias, gate_clip;
    Vectors<T> p;

    Span span(i64 gates) const { return {gates, H, Hp}; }
    bool two_streams() const { return split || (G == 3 && !all); }

    // f(k, n) for the pieces [k, k + n) of a row of summed inputs that the units of some gates are.
    template <class F> void pieces(i64 first, i64 gates, const F& f) const {
        if (to - from == Hp) return f(first * Hp, gates * Hp);
        for (i64 g = first; g < first + gates; ++g) f(g * Hp + from, to - from);
    }

    void find_statistics(const Forward<T>* w, i64 rows, i64 first, i64 gates) const {
        const i64 step = per_gate ? 1 : gates;
        for (i64 g = first; g < first + gates; g += step) {
            const auto of_gates = [=](Statistics<T>* found, const Statistics<T>& s) {
                for (i64 k = g; k < g + step; ++k) found[k] = s;
            };
            find_statistics(rows, step, norm_x, [=](i64 r) { return w[r].zx + g * Hp; },
                [&](i64 r, const Statistics<T>& s) { of_gates(w[r].statistics->x, s); });
            if (split)
                find_statistics(rows, step, norm_h, [=](i64 r) { return w[r].zh + g * Hp; },
                    [&](i64 r, const Statistics<T>& s) { of_gates(w[r].statistics->h, s); });
        }
    }
    template <class Row, class Found>
    void find_statistics(i64 rows, i64 gates, bool norm, const Row& row, const Found& found) const {
        if (norm) statistics<T>(rows, span(gates), norming, row, found);
        else
            for (i64 r = 0; r < rows; ++r) found(r, Statistics<T>{0, 1});
    }

    // What is normalised, the two streams or their sum: gates first ... first + gates - 1.
    void add_streams(const Forward<T>& w, i64 first, i64 gates) const {
        pieces(first, gates, [&](i64 k, i64 n) {
            if (!split) add(w.zx + k, w.zh + k, n);
            if (has_inside_x) add(w.zx + k, p.inside_x + k, n);
            if (has_inside_h) add((split ? w.zh : w.zx) + k, p.inside_h + k, n);
        });
    }
    // The same ready for the gains.
    void sites(const Forward<T>* w, i64 rows, i64 first, i64 gates) const {
        for (i64 r = 0; r < rows; ++r) add_streams(w[r], first, gates);
        find_statistics(w, rows, first, gates);
    }

    INLINE V<T> hat(const T* z, i64 j, const Statistics<T>& s) { return (load(z + j) - s.mean) * s.r; }

    // The summed inputs of a gate's unit after gain and bias, j counted over all gates; outside_x holds both biases.
    template <Streams IN, class Row> INLINE V<T> summed(const Vectors<T>& p, const Row& w, i64 gate, i64 j) {
        if constexpr (IN == ADDED) return load(w.zx + j) + load(w.zh + j) + load(p.outside_x + j);
        V<T> a = hat(w.zx, j, w.statistics->x[gate]) * load(p.gain_x + j) + load(p.outside_x + j);
        if (IN == TWO) a += hat(w.zh, j, w.statistics->h[gate]) * load(p.gain_h + j);
        return a;
    }

    // From da, the gradient of the summed inputs after gain and bias (`gradients`), to dzx and, if split, dzh, in FOUR rows at
    // most. The candidate of a GRU has one for W x and, Hp behind it, one for U h.
    template <Streams IN> void gates_backward(const Backward<T>* w, i64 rows, i64 first, i64 gates) const {
        GradientSums<T> of_x[4][FOUR], of_h[4][FOUR];
        for (i64 r = 0; r < rows; ++r)
            for (i64 g = first; g < first + gates; ++g) gate_backward<IN>(w[r], g, of_x[g][r], of_h[g][r]);
        const i64 step = per_gate ? 1 : gates;
        for (i64 g = first; g < first + gates; g += step) {
            for (i64 k = g + 1; k < g + step; ++k)
                for (i64 r = 0; r < rows; ++r) {
                    of_x[g][r].d += of_x[k][r].d, of_x[g][r].product += of_x[k][r].product;
                    of_h[g][r].d += of_h[k][r].d, of_h[g][r].product += of_h[k][r].product;
                }
            const i64 at = g * Hp;
            if (norm_x)
                standardize_backward(rows, span(step), norming, of_x[g], [=](i64 r) {
                    return StandardizedRow<T>{w[r].dzx + at, w[r].zx + at, w[r].statistics->x[g]};
                });
            if (IN == TWO && norm_h)
                standardize_backward(rows, span(step), norming, of_h[g], [=](i64 r) {
                    return StandardizedRow<T>{w[r].dzh + at, w[r].zh + at, w[r].statistics->h[g]};
                });
        }
    }
    template <Streams IN>
    INLINED void gate_backward(const Backward<T>& w, i64 g, GradientSums<T>& of_x, GradientSums<T>& of_h) const {
        const T *da = w.temporary, *of_hidden = da + (G == 3 && g == 2 ? Hp : 0);
        const Statistics<T> in_x = w.statistics->x[g], in_h = w.statistics->h[g];
        GradientSums<T> sum_x, sum_h;
        for (i64 j = g * Hp + from; j < g * Hp + to; j += LANES<T>) {
            const V<T> d = load(da + j), x = hat(w.zx, j, in_x), d_x = d * load(p.gain_x + j);
            add<T>(w.sums.outside_x + j, d);
            add<T>(w.sums.gain_x + j, d * x);
            store<T>(w.dzx + j, d_x);
            sum_x.d += d_x;
            sum_x.product += d_x * x;
            if (IN == TWO) {
                const V<T> h = hat(w.zh, j, in_h), d = load(of_hidden + j), d_h = d * load(p.gain_h + j);
                add<T>(w.sums.gain_h + j, d * h);
                store<T>(w.dzh + j, d_h);
                sum_h.d += d_h;
                sum_h.product += d_h * h;
            }
        }
        of_x = sum_x, of_h = sum_h;
    }
    // Where the gradients of the gates' summed inputs go after gain and bias; without these they are dzx.
    template <Streams IN> INLINE T* gradients(const Backward<T>& w) { return IN == ADDED ? w.dzx : w.temporary; }
    // From them to the two streams, of a network whose gates are normalised at one time.
    template <Streams IN> void streams_backward(const Backward<T>* w, i64 rows) const {
        if (IN != ADDED) gates_backward<IN>(w, rows, 0, G);
        for (i64 r = 0; r < rows; ++r) {
            if (IN == ADDED) pieces(0, G, [&](i64 k, i64 n) { add(w[r].sums.outside_x + k, w[r].dzx + k, n); });
            else inside_backward(w[r]);
        }
    }
    void inside_backward(const Backward<T>& w) const {
        pieces(0, G, [&](i64 k, i64 n) {
            if (has_inside_x) add(w.sums.inside_x + k, w.dzx + k, n);
            if (has_inside_h && two_streams()) add(w.sums.inside_h + k, w.dzh + k, n);
        });
    }

    // --- RNN, eq. 4 ---

    template <Streams IN> void rnn(const Forward<T>* w, i64 rows) const {
        if (IN != ADDED) sites(w, rows, 0, 1);
        for (i64 r = 0; r < rows; ++r) rnn_out<IN>(w[r]);
    }
    template <Streams IN> INLINED void rnn_out(const Forward<T>& w) const {
        for (i64 j = from; j < to; j += LANES<T>) {
            const V<T> a = summed<IN>(p, w, 0, j), h = relu ? LAYERNORM_ISA::relu<T>(a) : tanh<T>(a);
            store<T>(w.h + j, h);
            if (IN == ADDED) store<T>(w.zx + j, h);
        }
    }

    template <Streams IN> void rnn_backward(const Backward<T>* w, i64 rows) const {
        for (i64 r = 0; r < rows; ++r) rnn_out_backward<IN>(w[r]);
        streams_backward<IN>(w, rows);
    }
    template <Streams IN> INLINED void rnn_out_backward(const Backward<T>& w) const {
        T* da = gradients<IN>(w);
        for (i64 j = from; j < to; j += LANES<T>) {
            const V<T> dh = load(w.dh + j);
            if (relu) {
                const V<T> a = IN == ADDED ? load(w.zx + j) : summed<IN>(p, w, 0, j);
                store<T>(da + j, a > V<T>{} ? dh : V<T>{});
            } else {
                const V<T> h = IN == ADDED ? load(w.zx + j) : tanh<T>(summed<IN>(p, w, 0, j));
                store<T>(da + j, dh * (T(1) - h * h));
            }
            store<T>(w.dh + j, V<T>{});
        }
    }

    // --- LSTM, eqs. 20-22 ---

    template <Streams IN> void lstm(const Forward<T>* w, i64 rows) const {
        if (IN != ADDED) sites(w, rows, 0, 4);
        for (i64 r = 0; r < rows; ++r) lstm_gates<IN>(w[r]);
        if (cell)
            statistics<T>(rows, span(1), norming, [=](i64 r) { return w[r].c; },
                [=](i64 r, const Statistics<T>& s) { w[r].statistics->c = s; });
        for (i64 r = 0; r < rows; ++r) lstm_out<IN>(w[r]);
    }
    // One gate, o, is needed again once c is there.
    template <Streams IN> INLINE T* out_gate(T* zx, T* temporary, i64 Hp) { return IN == ADDED ? zx + 3 * Hp : temporary; }
    template <Streams IN> INLINED void lstm_gates(const Forward<T>& w) const {
        T* out = out_gate<IN>(w.zx, w.temporary, Hp);
        for (i64 j = from; j < to; j += LANES<T>) {
            const V<T> i = sigmoid<T>(summed<IN>(p, w, 0, j));
            const V<T> f = sigmoid<T>(summed<IN>(p, w, 1, Hp + j) + forget_bias);
            const V<T> g = tanh<T>(summed<IN>(p, w, 2, 2 * Hp + j)), o = sigmoid<T>(summed<IN>(p, w, 3, 3 * Hp + j));
            const V<T> c = f * load(w.c + j) + i * g;
            if (IN == ADDED) store<T>(w.zx + j, i), store<T>(w.zx + Hp + j, f), store<T>(w.zx + 2 * Hp + j, g);
            store<T>(out + j, o);
            store<T>(w.c + j, c);
            if (w.saved_c) store<T>(w.saved_c + j, c);
        }
    }
    template <Streams IN> INLINED void lstm_out(const Forward<T>& w) const {
        const T* out = out_gate<IN>(w.zx, w.temporary, Hp);
        for (i64 j = from; j < to; j += LANES<T>) {
            V<T> y = load(w.normalised_c + j);
            if (cell) y = hat(w.normalised_c, j, w.statistics->c) * load(p.gain_c + j) + load(p.bias_c + j);
            store<T>(w.h + j, load(out + j) * tanh<T>(y));
            if (carry) store<T>(w.c + j, y);
        }
    }

    template <Streams IN> void lstm_backward(const Backward<T>* w, i64 rows) const {
        GradientSums<T> of[FOUR];
        for (i64 r = 0; r < rows; ++r) of[r] = lstm_out_backward<IN>(w[r]);
        if (cell)
            standardize_backward(rows, span(1), norming, of, [=](i64 r) {
                return StandardizedRow<T>{cell_gradient(w[r]), w[r].saved_c, w[r].statistics->c};
            });
        for (i64 r = 0; r < rows; ++r) lstm_gates_backward<IN>(w[r]);
        streams_backward<IN>(w, rows);
    }
    T* cell_gradient(const Backward<T>& w) const { return w.temporary + 4 * Hp; }
    // The gate k of the unit j, as in `lstm_gates`.
    template <Streams IN, int k> INLINED V<T> lstm_gate(const Backward<T>& w, i64 j) const {
        const i64 at = k * Hp + j;
        if (IN == ADDED) return load(w.zx + at);
        const V<T> a = summed<IN>(p, w, k, at);
        return k == 2 ? tanh<T>(a) : sigmoid<T>(k == 1 ? a + forget_bias : a);
    }
    // The gradient of o's summed inputs, and of c from h, times gain_c; the sums of this over the units.
    template <Streams IN> INLINED GradientSums<T> lstm_out_backward(const Backward<T>& w) const {
        T *da = gradients<IN>(w), *dn_c = cell_gradient(w), *carried = dn_c + Hp;
        GradientSums<T> of;
        for (i64 j = from; j < to; j += LANES<T>) {
            const V<T> o = lstm_gate<IN, 3>(w, j), c = load(w.saved_c + j), dm = load(w.dh + j), dc = load(w.dc + j);
            const V<T> c_hat = cell ? hat(w.saved_c, j, w.statistics->c) : c;
            const V<T> tanh_c = tanh<T>(cell ? c_hat * load(p.gain_c + j) + load(p.bias_c + j) : c);
            V<T> d = dm * o * (T(1) - tanh_c * tanh_c);
            if (carry) d += dc;
            if (cell) {
                add<T>(w.sums.gain_c + j, d * c_hat);
                add<T>(w.sums.bias_c + j, d);
                d *= load(p.gain_c + j);
                of.d += d;
                of.product += d * c_hat;
            }
            store<T>(da + 3 * Hp + j, dm * tanh_c * o * (T(1) - o));
            store<T>(dn_c + j, d);
            store<T>(carried + j, carry ? V<T>{} : dc);
            if (w.m) store<T>(w.m + j, o * tanh_c);
        }
        return of;
    }
    template <Streams IN> INLINED void lstm_gates_backward(const Backward<T>& w) const {
        T *da = gradients<IN>(w), *dn_c = cell_gradient(w), *carried = dn_c + Hp;
        for (i64 j = from; j < to; j += LANES<T>) {
            const V<T> i = lstm_gate<IN, 0>(w, j), f = lstm_gate<IN, 1>(w, j), g = lstm_gate<IN, 2>(w, j);
            const V<T> dc = load(dn_c + j) + load(carried + j);
            store<T>(da + j, dc * g * i * (T(1) - i));
            store<T>(da + Hp + j, dc * load(w.c_before + j) * f * (T(1) - f));
            store<T>(da + 2 * Hp + j, dc * i * (T(1) - g * g));
            store<T>(w.dc + j, dc * f);
            store<T>(w.dh + j, V<T>{});
        }
        if (gate_clip < T(__builtin_inf()))
            pieces(0, 4, [&](i64 k, i64 n) {
                for (i64 j = k; j < k + n; j += LANES<T>) {
                    const V<T> d = load(da + j), most = V<T>{} + gate_clip;
                    store<T>(da + j, d > most ? most : d < -most ? -most : d);  // NaN stays
                }
            });
    }

    // --- GRU, eqs. 26-28: the candidate is tanh(LN(W_n x) + r LN(U_n h)), or with one stream tanh(LN(W_n x + r U_n h));
    // normalised together with r and z it is then tanh(r LN(W x + U h)_n) ---

    template <Streams IN> void gru(const Forward<T>* w, i64 rows) const {
        sites(w, rows, 0, all ? 3 : 2);
        for (i64 r = 0; r < rows; ++r) gru_gates<IN>(w[r]);
        for (i64 r = 0; !all && r < rows; ++r) candidate_streams<IN>(w[r]);
        if (!all) find_statistics(w, rows, 2, 1);
        for (i64 r = 0; r < rows; ++r) gru_out<IN>(w[r]);
    }
    template <Streams IN> INLINED void gru_gates(const Forward<T>& w) const {
        T *z = w.temporary, *r = z + Hp;
        for (i64 j = from; j < to; j += LANES<T>) {
            store<T>(r + j, sigmoid<T>(summed<IN>(p, w, 0, j)));
            store<T>(z + j, sigmoid<T>(summed<IN>(p, w, 1, Hp + j) + forget_bias));
        }
    }
    template <Streams IN> INLINED void gru_out(const Forward<T>& w) const {
        const i64 N = 2 * Hp;  // where the candidate begins
        const T *z = w.temporary, *r = z + Hp;
        for (i64 j = from; j < to; j += LANES<T>) {
            const V<T> n = tanh<T>(candidate<IN>(w, summed<ONE>(p, w, 2, N + j), load(r + j), j));
            store<T>(w.h + j, n + load(z + j) * (load(w.h + j) - n));
        }
    }
    // `add_streams` for a candidate that is normalised apart.
    template <Streams IN> void candidate_streams(const Forward<T>& w) const {
        const i64 N = 2 * Hp;
        const T* r = w.temporary + Hp;
        if (has_inside_x) add(w.zx + N + from, p.inside_x + N + from, to - from);
        if (has_inside_h) add(w.zh + N + from, p.inside_h + N + from, to - from);
        if (IN != TWO)
            for (i64 j = from; j < to; j += LANES<T>) add<T>(w.zx + N + j, load(r + j) * load(w.zh + N + j));
    }
    // What the candidate's tanh sees; x: its summed inputs on the side of W x, or of the one stream.
    template <Streams IN, class Row> V<T> candidate(const Row& w, V<T> x, V<T> r, i64 j) const {
        return IN == TWO ? x + r * hidden_candidate(w, j) : all ? r * x : x;
    }
    // LN(U_n h)
    template <class Row> V<T> hidden_candidate(const Row& w, i64 j) const {
        const i64 k = 2 * Hp + j;
        return hat(w.zh, k, w.statistics->h[2]) * load(p.gain_h + k) + load(p.outside_h + k);
    }

    template <Streams IN> void gru_backward(const Backward<T>* w, i64 rows) const {
        for (i64 r = 0; r < rows; ++r) gru_out_backward<IN>(w[r]);
        if (all) return streams_backward<IN>(w, rows);
        gates_backward<IN>(w, rows, 2, 1);
        for (i64 r = 0; IN != TWO && r < rows; ++r) gated_backward(w[r]);
        gates_backward<IN>(w, rows, 0, 2);
        for (i64 r = 0; r < rows; ++r) {
            if (IN != TWO) memcpy(w[r].dzh, w[r].dzx, 2 * Hp * sizeof(T));
            inside_backward(w[r]);
        }
    }
    template <Streams IN> INLINED void gru_out_backward(const Backward<T>& w) const {
        const i64 N = 2 * Hp;
        T *da = w.temporary, *da_n = da + N, *of_hidden = da_n + Hp, *r = of_hidden + Hp;
        for (i64 j = from; j < to; j += LANES<T>) {
            const V<T> reset = sigmoid<T>(summed<IN>(p, w, 0, j));
            const V<T> z = sigmoid<T>(summed<IN>(p, w, 1, Hp + j) + forget_bias);
            const V<T> x = summed<ONE>(p, w, 2, N + j), n = tanh<T>(candidate<IN>(w, x, reset, j));
            const V<T> dh = load(w.dh + j), d = dh * (T(1) - z) * (T(1) - n * n);
            const V<T> times = IN == TWO ? hidden_candidate(w, j) : x;  // what r multiplies
            store<T>(r + j, reset);
            store<T>(da + j, d * times * reset * (T(1) - reset));
            store<T>(da + Hp + j, dh * (load(w.h_before + j) - n) * z * (T(1) - z));
            store<T>(da_n + j, IN != TWO && all ? d * reset : d);
            store<T>(of_hidden + j, d * reset);
            store<T>(w.dh + j, dh * z);
            if (IN == TWO) add<T>(w.sums.outside_h + N + j, d * reset);
        }
    }
    // With one stream and a candidate normalised apart r multiplies U_n h, before the normalisation.
    void gated_backward(const Backward<T>& w) const {
        const i64 N = 2 * Hp;
        T *da = w.temporary, *r = da + 4 * Hp;
        for (i64 j = from; j < to; j += LANES<T>) {
            const V<T> reset = load(r + j), d = load(w.dzx + N + j);
            store<T>(da + j, d * load(w.zh + j) * reset * (T(1) - reset));
            store<T>(w.dzh + N + j, d * reset);
        }
    }

    // --- rows of any network ---

    template <Streams IN> void forward(const Forward<T>* w, i64 rows) const {
        if (G == 4) lstm<IN>(w, rows);
        else if (G == 1) rnn<IN>(w, rows);
        else if constexpr (IN != ADDED) gru<IN>(w, rows);
    }
    template <Streams IN> void four_backward(const Backward<T>* w, i64 rows) const {
        if (G == 4) lstm_backward<IN>(w, rows);
        else if (G == 1) rnn_backward<IN>(w, rows);
        else if constexpr (IN != ADDED) gru_backward<IN>(w, rows);
    }
    void forward(const Forward<T>* w, i64 rows) const {
        streams == ADDED ? forward<ADDED>(w, rows) : streams == ONE ? forward<ONE>(w, rows) : forward<TWO>(w, rows);
    }
    template <Streams IN> void backward(const Backward<T>* w, i64 rows) const {
        by_fours(rows, [&](i64 first, i64 count) { four_backward<IN>(w + first, count); });
    }
    void backward(const Backward<T>* w, i64 rows) const {
        streams == ADDED ? backward<ADDED>(w, rows) : streams == ONE ? backward<ONE>(w, rows) : backward<TWO>(w, rows);
    }
};

}  // namespace LAYERNORM_ISA
