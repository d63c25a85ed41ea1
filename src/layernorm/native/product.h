// Matrix products of a few rows with a matrix that is used many times: B is packed once into panels of PANEL columns,
// [panel][k][PANEL], so that the inner loop reads it in order. Every element of a product is one sum over k in order,
// whatever the other rows are and however they are shared out among threads. k counts factors F of DEPTH numbers each.
#pragma once

#include "elements.h"

namespace LAYERNORM_ISA {

template <class F> constexpr int PANEL = 2 * LANES<F>;
constexpr int TILE = REGISTERS == 32 ? 12 : 6;  // rows: TILE * 2 accumulators and 3 operands fill the registers

template <class F> struct Panels {
    F* data;
    i64 K, columns;  // columns: a multiple of PANEL, zero beyond those that the matrix has

    i64 count() const { return columns / PANEL<F>; }
    F* panel(i64 p) const { return data + p * K * PANEL<F>; }
};

// C[MR][PANELS * PANEL] (+)= A[MR][K] B; factor (r, k) of A is a[r * row + k * column].
template <class F, int MR, int PANELS, bool ADD>
static void tile(const F* a, i64 row, i64 column, const F* b, i64 K, SumOf<F>* c, i64 ldc) {
    using T = SumOf<F>;
    V<T> acc[MR][2 * PANELS] = {};
    for (i64 k = 0; k < K; ++k) {
        V<F> right[2 * PANELS];
#pragma GCC unroll 8
        for (int j = 0; j < 2 * PANELS; ++j)
            right[j] = load(b + (j / 2) * K * PANEL<F> + k * PANEL<F> + (j % 2) * LANES<F>);
        if (MR > 1)
#pragma GCC unroll 8
            for (int j = 0; j < 2 * PANELS; ++j) keep<F>(right[j]);
#pragma GCC unroll 12
        for (int r = 0; r < MR; ++r) {
            const V<F> left = all(a[r * row + k * column]);
#pragma GCC unroll 8
            for (int j = 0; j < 2 * PANELS; ++j) add_product<F>(acc[r][j], left, right[j]);
        }
    }
#pragma GCC unroll 12
    for (int r = 0; r < MR; ++r)
#pragma GCC unroll 8
        for (int j = 0; j < 2 * PANELS; ++j) {
            T* to = c + r * ldc + j * LANES<T>;
            store(to, ADD ? load(to) + acc[r][j] : acc[r][j]);
        }
}

template <class F> using Tile = void (*)(const F*, i64, i64, const F*, i64, SumOf<F>*, i64);

// How many panels are taken at once: with few rows several, to have enough sums under way.
constexpr i64 wide(i64 rows) { return rows == 1 ? 4 : rows == 2 || (REGISTERS == 32 && rows <= 6) ? 2 : 1; }

template <class F, int PANELS> static Tile<F> tile_of(i64 rows) {
    static constexpr Tile<F> by_rows[] = {nullptr, tile<F, 1, PANELS, false>, tile<F, 2, PANELS, false>,
        tile<F, 3, PANELS, false>, tile<F, 4, PANELS, false>, tile<F, 5, PANELS, false>, tile<F, 6, PANELS, false>,
#if defined(__AVX512F__) || defined(__aarch64__)
        tile<F, 7, PANELS, false>, tile<F, 8, PANELS, false>, tile<F, 9, PANELS, false>, tile<F, 10, PANELS, false>,
        tile<F, 11, PANELS, false>, tile<F, 12, PANELS, false>,
#endif
    };
    return by_rows[rows];
}
template <class F> static Tile<F> tile_of(i64 rows, i64 panels) {
    if (panels == 1) return tile_of<F, 1>(rows);
    static constexpr Tile<F> by_rows[] = {nullptr, tile<F, 1, 4, false>, tile<F, 2, 2, false>,
        tile<F, 3, 2, false>, tile<F, 4, 2, false>, tile<F, 5, 2, false>, tile<F, 6, 2, false>};
    return by_rows[rows];
}

// C = A B for `outer` blocks of `rows` rows each; rows lda numbers, blocks `outer_a` apart. C has `columns` columns, of
// which those beyond the last whole panel go through a buffer.
template <class X> struct Rows {
    const X* a;
    i64 outer, outer_a, rows, lda;
};
template <class F>
static void product(
    const Rows<ElementOf<F>>& A, const Panels<F>& B, SumOf<F>* c, i64 outer_c, i64 ldc, i64 columns) {
    if (A.rows == 0 || A.outer == 0) return;
    const i64 blocks = (A.rows + TILE - 1) / TILE, height = (A.rows + blocks - 1) / blocks;
    const i64 whole = columns / PANEL<F>, lda = A.lda / DEPTH<F>;
    for (i64 p = 0, panels; p * PANEL<F> < columns; p += panels) {
        panels = whole - p >= wide(height) ? wide(height) : 1;
        for (i64 o = 0; o < A.outer; ++o)
            for (i64 r = 0; r < A.rows; r += height) {
                const i64 m = least(height, A.rows - r), at_once = wide(m) == panels ? panels : 1;
                const F* a = reinterpret_cast<const F*>(A.a + o * A.outer_a + r * A.lda);
                SumOf<F>* to = c + o * outer_c + r * ldc + p * PANEL<F>;
                if (p < whole) {
                    for (i64 q = 0; q < panels; q += at_once)
                        tile_of<F>(m, at_once)(a, lda, 1, B.panel(p + q), B.K, to + q * PANEL<F>, ldc);
                } else {
                    SumOf<F> part[TILE * PANEL<F>];
                    tile_of<F, 1>(m)(a, lda, 1, B.panel(p), B.K, part, PANEL<F>);
                    for (i64 i = 0; i < m; ++i)
                        memcpy(to + i * ldc, part + i * PANEL<F>, (columns - p * PANEL<F>) * sizeof *to);
                }
            }
    }
}

// --- packing ---

#if defined(LAYERNORM_SHUFFLES)
template <class T, int STEP, int... LANE>
INLINE void exchange(V<T>& a, V<T>& b, const Lanes<LANE...>&) {
    constexpr int N = sizeof...(LANE);
    const V<T> upper = __builtin_shufflevector(a, b, (LANE & STEP ? N + LANE - STEP : LANE)...);
    b = __builtin_shufflevector(a, b, (LANE & STEP ? N + LANE : LANE + STEP)...);
    a = upper;
}
template <class T, int STEP> INLINE void transpose(V<T>* row) {
    if constexpr (STEP >= 1) {
#pragma GCC unroll 16
        for (int i = 0; i < LANES<T>; ++i)
            if (!(i & STEP)) exchange<T, STEP>(row[i], row[i + STEP], AllLanes<LANES<T>>{});
        transpose<T, STEP / 2>(row);
    }
}
#endif

// to[k * PANEL + c] = factor k of from[c], K numbers, for one vector of columns c (a null row is zero).
template <class F, class E> static void interleave(F* to, const E* const* from, i64 K) {
    i64 k = 0;
#if defined(LAYERNORM_SHUFFLES)
    for (; (k + LANES<F>) * DEPTH<F> <= K; k += LANES<F>) {
        V<F> row[LANES<F>];
#pragma GCC unroll 16
        for (int c = 0; c < LANES<F>; ++c) row[c] = from[c] ? factors<F>(from[c] + k * DEPTH<F>) : V<F>{};
        transpose<F, LANES<F> / 2>(row);
#pragma GCC unroll 16
        for (int c = 0; c < LANES<F>; ++c) store(to + (k + c) * PANEL<F>, row[c]);
    }
#endif
    for (; k * DEPTH<F> < K; ++k)
        for (int c = 0; c < LANES<F>; ++c)
            to[k * PANEL<F> + c] = from[c] ? factor<F>(from[c] + k * DEPTH<F>, K - k * DEPTH<F>) : F{};
}

// --- without packing: for a call that uses a matrix only a few times ---

// c[j] = sum over k of w[j][k] * a[k], j < units.
template <class T, class A, class E> static void dense(const A* a, const E* w, i64 K, i64 units, T* c) {
    constexpr int N = 4;
    const i64 whole = K / LANES<T> * LANES<T>, rest = K - whole;
    for (i64 j = 0; j < units; j += N) {
        const i64 n = least(N, units - j);
        const E* row[N];
        for (i64 i = 0; i < N; ++i) row[i] = w + (j + least(i, n - 1)) * K;
        V<T> acc[N] = {};
        for (i64 k = 0; k < whole; k += LANES<T>)
            for (int i = 0; i < N; ++i) acc[i] += widen<T>(row[i] + k) * widen<T>(a + k);
        if (rest)
            for (int i = 0; i < N; ++i) acc[i] += widen<T>(row[i] + whole, rest) * widen<T>(a + whole, rest);
        for (i64 i = 0; i < n; ++i) c[j + i] = sum<T>(acc[i]);
    }
}

// c[k] += sum over j of a[j] * w[j][k], from <= k < end, j < units; a row of w is K numbers long.
template <class T, class A, class E>
INLINE void add_dense_transposed(const A* a, const E* w, i64 units, i64 K, i64 from, i64 end, T* c) {
    constexpr i64 N = 8;
    T left[N];
    for (i64 i = 0; i < units; ++i) left[i] = widened<T>(a[i]);
    over<T>(end - from, [&](i64 k, i64 n) {
        V<T> sum = widen<T>(c + from + k, n);
        for (i64 i = 0; i < units; ++i) sum += all(left[i]) * widen<T>(w + i * K + from + k, n);
        narrow<T>(c + from + k, sum, n);
    });
}
// c[k] = sum over j of a[j] * w[j][k], from <= k < end, for `blocks` of `units` rows j, in a they are `apart`.
template <class T, class A, class E>
static void dense_transposed(const A* a, const E* w, i64 blocks, i64 units, i64 apart, i64 K, i64 from, i64 end, T* c) {
    constexpr i64 N = 8;
    memset(c + from, 0, (end - from) * sizeof(T));
    for (i64 g = 0; g < blocks; ++g, a += apart, w += units * K) {
        i64 j = 0;
        for (; j + N <= units; j += N) add_dense_transposed(a + j, w + j * K, N, K, from, end, c);
        if (j < units) add_dense_transposed(a + j, w + j * K, units - j, K, from, end, c);
    }
}

// c[k] = sum over r of a[r] * b[r][k], k < K; a null row is zeros.
template <class T, class E> static void outer(const T* a, const E* const* b, i64 rows, i64 K, E* c) {
    over<T>(K, [&](i64 k, i64 n) {
        V<T> sum = {};
        for (i64 r = 0; r < rows; ++r)
            if (b[r]) sum += all(a[r]) * widen<T>(b[r] + k, n);
        narrow<T>(c + k, sum, n);
    });
}

}  // namespace LAYERNORM_ISA
