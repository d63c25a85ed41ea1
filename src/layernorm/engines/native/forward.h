// The forward over a sequence. The batch's rows are shared out among threads; each thread takes its rows through all steps
// with no barrier, W_ih x in blocks of steps that stay in its cache, W_hh h step by step. Where there are fewer rows than
// threads and a step's product is worth a barrier, the columns of each product are shared out instead. So they are under
// batch norm, where all rows go through each step together.
#pragma once

#include "batch_norm.h"
#include "quantized.h"
#include "sequence.h"

namespace LAYERNORM_ISA {

constexpr i64 STEP_BLOCK_BYTES = 512 << 10;  // of W_ih x, a thread's
constexpr i64 QUANTIZED_SHARED = 4 * DENSE_SHARED;
constexpr i64 NEAR_BYTES = 1280 << 10;       // of W_hh: what leaves room for the rest in a core's own cache

template <class T, class E, class... Factors> struct ForwardPass : Sequence<T, E, Factors...> {
    using S = Sequence<T, E, Factors...>;
    using typename S::F, typename S::X;
    using S::UNITS;
    using S::n, S::run, S::T_, S::B, S::I, S::H, S::P, S::G, S::Hp, S::Z, S::W, S::layer, S::in, S::out, S::given, S::result;
    BatchNorm<T> batch_norm;
    static constexpr i64 HEIGHT = TILED<F> ? 16 : TILE;  // rows that fill a tile
    const i64 Wh = rows_apart(W);                        // numbers from one row of h to the next
    const i64 Wm = S::whole(Hp);                         // and of m, as the products read it
    ForwardPass(const Recurrent& call, ParallelFor run) : S(call, run, S::rows_of_direct_forward(call)), batch_norm(call) {}

    void lay(Cursor& c) {
        batch_norm.lay(c);
        S::lay_lines(c);
        if (!n.prepared) lay_parameters(c);
    }
    void lay_parameters(Cursor& c) {
        S::lay_vectors(c);
        if (n.projected) S::lay_panels(c, S::hr, H, W);
        if (S::direct()) return;
        S::lay_panels(c, S::ih, I, width());
        S::lay_panels(c, S::hh, P, width());
    }

    // How many numbers of a row of summed inputs the products make. The others, up to Z, only keep rows apart.
    i64 width() const { return S::whole_columns(G * Hp); }

    void pack_parameters() {
        S::prepare_vectors();
        const auto of_projection = [this](i64 j) { return j < P ? j : -1; };
        if (n.projected)
            share(run, S::hr.count(),
                [&](i64 from, i64 end) { S::pack_transposed(S::hr, given(n.w_hr), H, from, end, of_projection); });
        if (S::direct()) return;
        const auto of_gates = [this](i64 j) { return S::unit(j); };
        share(run, S::ih.count(), [&](i64 from, i64 end) {
            S::pack_transposed(S::ih, given(n.w_ih), I, from, end, of_gates);
            S::pack_transposed(S::hh, given(n.w_hh), P, from, end, of_gates);
        });
    }

    // f(row, units, at) for the units of all gates, some at a time: at which row of a matrix they begin, and where in a row of
    // summed inputs. Threads share out a matrix with more than `shared` numbers, K in a row.
    template <class Units> void over_gates(i64 K, i64 shared, const Units& f) const {
        const i64 blocks = Hp / UNITS;
        share(G * H * K > shared ? run : nullptr, G * blocks, [&](i64 from, i64 end) {
            for (i64 q = from; q < end; ++q) {
                const i64 g = q / blocks, u = q % blocks * UNITS;
                f(g * H + u, least(UNITS, H - u), g * Hp + u);
            }
        });
    }

    // The product with a matrix as it is, for few rows.
    template <class A>
    void dense_gates(const Rows<A>& rows, const E* w, i64 K, T* z, i64 outer_z) const {
        const FewRows<A, T> few(rows, z, outer_z, Z);
        for (i64 r = 0; r < few.count; ++r) memset(few.c[r], 0, Z * sizeof(T));
        over_gates(K, DENSE_SHARED, [&](i64 row, i64 units, i64 at) { dense<F>(few, w + row * K, K, units, at); });
    }

    // The product with a matrix of int8. `memory`: for ROUNDED_ROWS rows.
    template <class A>
    void quantized_gates(
        const Rows<A>& rows, const void* w, const void* scale, i64 K, T* z, i64 outer_z, int8_t* memory) const {
        const i64 all = rows.outer * rows.rows;
        for (i64 done = 0; done < all; done += ROUNDED_ROWS) {
            RoundedRows<T> few;
            for (i64 i = done; i < least(all, done + ROUNDED_ROWS); ++i) {
                const i64 o = i / rows.rows, r = i % rows.rows;
                T* c = z + o * outer_z + r * Z;
                memset(c, 0, Z * sizeof(T));
                few.take(memory, rows.a + o * rows.outer_a + r * rows.lda, K, c);
            }
            over_gates(K, QUANTIZED_SHARED, [&](i64 row, i64 units, i64 at) {
                few.multiply(static_cast<const int8_t*>(w) + row * K, in(scale) + row, K, units, at);
            });
        }
    }

    // Returns how many rows of a packed call come before thread k's, if all threads have about as many lines.
    i64 rows_before(i64 k) const {
        i64 b = 0, lines = 0;
        while (b < B && lines * n.threads < k * S::all_lines) lines += S::lengths[b++];
        return b;
    }

    // How many rows go through the sequence together. Few, where what they need then stays in cache beside W_hh. Many, where
    // W_hh does not fit there and is read again at each step: each reading serves as many rows as possible.
    i64 rows_together() const { return P * Z / DEPTH<F> * i64(sizeof(F)) <= NEAR_BYTES ? 2 * HEIGHT : 12 * HEIGHT; }

    // What a thread needs for its rows.
    struct Part {
        i64 rows, lines;  // lines: of these rows in a block of steps
        const ForwardPass& pass;
        T *zx, *zh, *h, *c, *m, *temporary;
        T* old;  // [2*Hp], h and c of a row before its step, if something of them is kept
        Forward<T>* taken;  // the rows that go through a step together
        X *x, *h_factors, *m_factors;  // what the products read; h and m themselves, if they are of that type
        RowStatistics<T>* statistics;
        int8_t* rounded;
        const auto* h_result() const {  // h in the type of the output, if it is there
            if constexpr (SAME<E, X>) return h_factors;
            else return h;
        }
        void lay(Cursor& cursor) {
            cursor.take(zx, pass.n.saved_x ? 0 : lines * pass.Z);
            cursor.take(zh, rows * most(pass.Z, pass.W));
            cursor.take(h, rows * pass.Wh);
            cursor.take(c, rows * pass.Hp);
            cursor.take(m, pass.n.projected ? rows * pass.Hp : 0);
            cursor.take(x, SAME<E, F> || pass.direct() ? 0 : lines * S::whole(pass.I));
            if constexpr (SAME<X, T>) {
                if (pass.n.dropout) cursor.take(h_factors, rows * pass.Wh);
                else h_factors = h;
                m_factors = m;
            } else {
                cursor.take(h_factors, rows * pass.Wh);
                cursor.take(m_factors, pass.n.projected ? rows * pass.Wm : 0);
            }
            const i64 together = pass.rows_at_once(rows);
            cursor.take(temporary, together * 4 * pass.Hp);
            cursor.take(old, pass.keeps_old_state() ? together * 2 * pass.Hp : 0);
            cursor.take(taken, together);
            cursor.take(statistics, together);
            cursor.take(rounded, pass.quantized() ? ROUNDED_ROWS * round_up(most(pass.I, pass.P), BYTES) : 0);
        }
    };

    bool saves_h() const { return n.saved_h && n.split; }

    // Computes W_ih x of rows [b0, b1) at times [low, end): to where it is saved, or line by line into the part's own memory.
    void input_side(i64 low, i64 end, i64 b0, i64 b1, const Part& part) const {
        T* zx = part.zx;
        S::runs(low, end, b0, b1, [&](i64 t, i64 steps, i64 rows, i64 apart) {
            const E* x = S::x_at(t, b0);
            const i64 x_t = S::packed() ? apart * n.x_b : n.x_t;
            if (n.saved_x) {
                input_run(x, x_t, steps, rows, part, saved_zx(t, b0), apart * Z);
            } else {
                input_run(x, x_t, steps, rows, part, zx, rows * Z);
                zx += steps * rows * Z;
            }
        });
    }
    T* saved_zx(i64 t, i64 b) const { return out(n.saved_x) + S::line(t, b) * Z; }
    // Computes W_ih x of so many steps of so many rows: zx[step][row][Z], with steps `apart` elements apart. An x that does not
    // lie in memory as factors is copied first.
    void input_run(const E* x, i64 x_t, i64 steps, i64 rows, const Part& part, T* zx, i64 apart) const {
        if (S::quantized()) {
            quantized_gates<E>({x, steps, x_t, rows, n.x_b}, n.w_ih, n.scale_ih, I, zx, apart, part.rounded);
        } else if (S::direct()) {
            dense_gates<E>({x, steps, x_t, rows, n.x_b}, given(n.w_ih), I, zx, apart);
        } else if constexpr (SAME<E, F>) {
            S::multiply_run({x, steps, x_t, rows, n.x_b}, S::ih, zx, apart, Z, width());
        } else {
            const i64 length = S::whole(I);
            for (i64 s = 0; s < steps; ++s)
                for (i64 r = 0; r < rows; ++r) {
                    X* to = part.x + (s * rows + r) * length;
                    if (I) convert(to, x + s * x_t + r * n.x_b, I);
                    if (length > I) memset(static_cast<void*>(to + I), 0, (length - I) * sizeof(X));
                }
            S::multiply_run({part.x, steps, rows * length, rows, length}, S::ih, zx, apart, Z, width());
        }
    }

    void rows(i64 b0, i64 b1) {
        const i64 R = b1 - b0, T_end = S::packed() ? S::lengths[b0] : T_;
        Part part{R, R * most(1, least(T_end, STEP_BLOCK_BYTES / i64(R * Z * sizeof(T)))), *this};
        if (!of_part.arrange(part)) return S::failed.set();
        if (n.projected) memset(part.m_factors, 0, R * Wm * sizeof(X));
        for (i64 r = 0; r < S::rows_at_once(R); ++r) part.statistics[r] = RowStatistics<T>::none();
        for (i64 r = 0; r < R; ++r) set_state(b0 + r, r, n.h0, n.c0, part);
        const auto time = [&](i64 step) { return n.reverse ? T_end - 1 - step : step; };
        for (i64 done = 0, steps; done < T_end; done += steps) {
            i64 lines = 0;
            for (steps = 0; done + steps < T_end; ++steps) {
                const i64 more = S::rows_of(time(done + steps), b0, b1);
                if (lines + more > part.lines) break;
                lines += more;
            }
            const i64 low = n.reverse ? T_end - done - steps : done;
            input_side(low, low + steps, b0, b1, part);
            T* zx = part.zx + (n.reverse ? lines * Z : 0);
            for (i64 s = 0; s < steps; ++s) {
                const i64 t = time(done + s), rows = S::rows_of(t, b0, b1);
                if (n.reverse) zx -= rows * Z;
                step(t, b0, rows, n.saved_x ? saved_zx(t, b0) : zx, part);
                if (!n.reverse) zx += rows * Z;
            }
        }
        for (i64 r = 0; r < R; ++r) {
            convert(result(n.h_n) + (b0 + r) * P, part.h + r * Wh, P);
            if (n.c_n) convert(result(n.c_n) + (b0 + r) * H, part.c + r * Hp, H);
        }
        of_part.release();
    }

    // Brings a row's h into the form that W_hh reads.
    void read_h(i64 b, i64 r, Part& part) const {
        if (n.dropout) S::drop(part.h_factors + r * Wh, part.h + r * Wh, b);
        else S::as_factors(part.h_factors + r * Wh, part.h + r * Wh, P);
    }
    // Sets a row's state to its row of h and of c, or to zeros where these are null.
    void set_state(i64 b, i64 r, const void* h, const void* c, Part& part) const {
        memset(part.h + r * Wh, 0, Wh * sizeof(T));
        memset(part.h_factors + r * Wh, 0, Wh * sizeof(X));
        memset(part.c + r * Hp, 0, Hp * sizeof(T));
        if (h) convert(part.h + r * Wh, given(h) + b * P, P), read_h(b, r, part);
        if (c) convert(part.c + r * Hp, given(c) + b * H, H);
    }
    // Zoneout: mixes the state after a step with its share of the old one.
    void keep(T* state, const T* old, const T* share, i64 count) const {
        over<T>(count, [&](i64 j, i64 k) {
            const V<T> kept = S::number_at(share, j, k);
            narrow<T>(state + j, kept * widen<T>(old + j, k) + (T(1) - kept) * widen<T>(state + j, k), k);
        });
    }

    // One step of the R rows from b0 on that have a line at time t.
    void step(i64 t, i64 b0, i64 R, T* zx, Part& part) {
        i64 rows = R;  // up to the last one that takes this step
        while (rows > 0 && !S::counts(t, b0 + rows - 1)) --rows;
        if (n.reset)
            for (i64 r = 0; r < rows; ++r)
                if (S::cut(t, b0 + r)) set_state(b0 + r, r, n.restart_h, n.restart_c, part);
        T* zh = saves_h() ? out(n.saved_h) + S::line(t, b0) * Z : part.zh;
        if (S::quantized())
            quantized_gates<T>({part.h, 1, 0, rows, Wh}, n.w_hh, n.scale_hh, P, zh, 0, part.rounded);
        else if (S::direct())
            dense_gates<X>({part.h_factors, 1, 0, rows, Wh}, given(n.w_hh), P, zh, 0);
        else
            S::multiply({part.h_factors, 1, 0, rows, Wh}, S::hh, zh, 0, Z, width());
        const i64 together = S::rows_at_once(rows);
        i64 first = 0;
        do {  // once at least: batch norm has moments of a step that no row takes
            i64 taken = 0;
            for (i64 r = first; r < least(rows, first + together); ++r) {
                if (!S::counts(t, b0 + r)) continue;
                if (!S::active(t, b0 + r)) memset(zx + r * Z, 0, Z * sizeof(T));
                part.taken[taken] = begin_row(t, b0, r, zx + r * Z, zh + r * Z, r - first, part), ++taken;
            }
            if (n.batch_norm) batch_norm.forward(t, part.taken, taken, run);
            else layer.forward(part.taken, taken);
            taken = 0;
            for (i64 r = first; r < least(rows, first + together); ++r)
                if (S::counts(t, b0 + r)) end_row(t, b0, r, part.taken[taken++], old_state(r - first, part), part);
            first += together;
        } while (first < rows);
        if (n.projected) project(t, b0, rows, part);
        for (i64 r = 0; r < R; ++r) {
            E* y = result(n.output) + S::line(t, b0 + r) * P;
            if (S::active(t, b0 + r) && n.dropout) convert(y, part.h + r * Wh, P);
            else if (S::active(t, b0 + r)) convert(y, part.h_result() + r * Wh, P);
            else nothing(t, b0 + r, y);
            if (n.saved_output) convert(result(n.saved_output) + S::line(t, b0 + r) * P, y, P);
        }
    }

    bool keeps_old_state() const { return n.kept_h || n.kept_c || n.batch_norm == MADE_WITH_ENDED; }
    T* old_state(i64 place, const Part& part) const { return part.old + place * 2 * Hp; }

    // place: that of the row among those that go through the step together.
    Forward<T> begin_row(i64 t, i64 b0, i64 r, T* zx, T* zh, i64 place, Part& part) const {
        const i64 at = S::line(t, b0 + r);
        if (const i64 rest = Z - width()) {
            if (n.saved_x) memset(zx + width(), 0, rest * sizeof(T));
            if (saves_h()) memset(zh + width(), 0, rest * sizeof(T));
        }
        T *h = n.projected ? part.m + r * Hp : part.h + r * Wh, *c = part.c + r * Hp;
        RowStatistics<T>* statistics = n.saved_statistics ? S::statistics(at) : part.statistics + place;
        if (n.saved_statistics) *statistics = RowStatistics<T>::none();
        if (keeps_old_state() && !n.projected) memcpy(old_state(place, part), h, P * sizeof(T));
        if (keeps_old_state() && n.c0) memcpy(old_state(place, part) + Hp, c, H * sizeof(T));
        T* temporary = part.temporary + place * 4 * Hp;
        return {zx, zh, c, h, n.batch_norm && n.cell ? temporary + Hp : c, n.saved_c ? out(n.saved_c) + at * Hp : nullptr,
            statistics, temporary};
    }
    void end_row(i64 t, i64 b0, i64 r, const Forward<T>& w, const T* old, Part& part) const {
        const i64 at = S::line(t, b0 + r);
        if (n.saved_h && !n.split) memcpy(out(n.saved_h) + at * Hp, w.zh + 2 * Hp, Hp * sizeof(T));
        if (!S::active(t, b0 + r)) {
            if (!n.projected) memcpy(w.h, old, P * sizeof(T));
            if (n.c0) memcpy(w.c, old + Hp, H * sizeof(T));
            return;
        }
        const T *share_h = n.projected ? nullptr : S::kept_at(n.kept_h, t, b0 + r, P);
        const T* share_c = S::kept_at(n.kept_c, t, b0 + r, H);
        if (share_h) keep(w.h, old, share_h, P);
        if (share_c) keep(w.c, old + Hp, share_c, H);
        if (n.saved_kept) memcpy(out(n.saved_kept) + at * Hp, w.c, Hp * sizeof(T));
        if (!n.projected) read_h(b0 + r, r, part);
    }

    // Writes zeros as the results of a row that did not take the step, so that none is left to chance.
    void nothing(i64 t, i64 b, E* y) const {
        const i64 at = S::line(t, b);
        memset(y, 0, P * sizeof(E));
        if (S::counts(t, b)) return;
        if (n.saved_x) memset(out(n.saved_x) + at * Z, 0, Z * sizeof(T));
        if (n.saved_h) memset(out(n.saved_h) + at * S::size_of_saved_h(), 0, S::size_of_saved_h() * sizeof(T));
        if (n.saved_c) memset(out(n.saved_c) + at * Hp, 0, Hp * sizeof(T));
        if (n.saved_kept) memset(out(n.saved_kept) + at * Hp, 0, Hp * sizeof(T));
        if (n.saved_statistics) memset(static_cast<void*>(S::statistics(at)), 0, STATISTICS * sizeof(T));
    }

    // h = W_hr m, for the rows that took the step.
    void project(i64 t, i64 b0, i64 rows, Part& part) {
        for (i64 r = 0; r < rows; ++r) S::as_factors(part.m_factors + r * Wm, part.m + r * Hp, Hp);
        S::multiply({part.m_factors, 1, 0, rows, Wm}, S::hr, part.zh, 0, W, S::whole_columns(P));
        for (i64 r = 0; r < rows; ++r) {
            if (!S::active(t, b0 + r)) continue;
            T *h = part.h + r * Wh, *made = part.zh + r * W;
            if (const T* share = S::kept_at(n.kept_h, t, b0 + r, P)) keep(made, h, share, P);
            memcpy(h, made, P * sizeof(T));
            read_h(b0 + r, r, part);
        }
    }
};

template <class T, class E, class... Factors> static int recurrent_forward(const Recurrent* call, ParallelFor run) {
    ForwardPass<T, E, Factors...> pass(*call, run);
    if (pass.ROUNDS && pass.direct()) return NOT_ROUNDED;
    if (!of_call.arrange(pass)) return 1;
    pass.find_lines();
    pass.find_parameters(pass);
    pass.batch_norm.begin(pass.layer);
    const i64 together = call->batch_norm ? pass.B : pass.rows_together();
    const bool by_columns = call->batch_norm || pass.few_rows(pass.B);
    pass.columns = pass.shares_columns(pass.B) ? run : nullptr;
    const auto in_chunks = [&](i64 b0, i64 b1) {
        if (b0 == b1) return;  // fewer rows than threads
        const i64 chunks = (b1 - b0 + together - 1) / together, rows = round_up((b1 - b0 + chunks - 1) / chunks, pass.HEIGHT);
        for (i64 b = b0; b < b1; b += rows) pass.rows(b, least(b1, b + rows));
    };
    if (by_columns || !pass.packed()) share(by_columns ? nullptr : run, pass.B, in_chunks);
    else share(run, call->threads, [&](i64 from, i64 end) { in_chunks(pass.rows_before(from), pass.rows_before(end)); });
    of_call.release();
    return pass.failed;
}

template <class T, class E, class... Factors> static i64 prepare_forward(const Recurrent* call, ParallelFor run) {
    ForwardPass<T, E, Factors...> pass(*call, run);
    return prepare(pass);
}

}  // namespace LAYERNORM_ISA
