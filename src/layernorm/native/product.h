// Matrix products of a few rows with a matrix that is used many times: B is packed once into panels of PANEL columns,
// [panel][k][PANEL], so that the inner loop reads it in order. Every element of a product is one sum over k in order,
// whatever the other rows are and however they are shared out among threads.
#pragma once

#include "simd.h"

namespace LAYERNORM_ISA {

template <class T> constexpr int PANEL = 2 * LANES<T>;
constexpr int TILE = REGISTERS == 32 ? 12 : 6;  // rows: TILE * 2 accumulators and 3 operands fill the registers

template <class T> struct Panels {
    T* data;
    i64 K, columns;  // columns: a multiple of PANEL, zero beyond those that the matrix has

    static i64 size(i64 K, i64 columns) { return K * round_up(columns, PANEL<T>); }
    i64 count() const { return columns / PANEL<T>; }
    T* panel(i64 p) const { return data + p * K * PANEL<T>; }
};

// C[MR][PANELS * PANEL] (+)= A[MR][K] B; element (r, k) of A is a[r * row + k * column].
template <class T, int MR, int PANELS, bool ADD>
static void tile(const T* a, i64 row, i64 column, const T* b, i64 K, T* c, i64 ldc) {
    V<T> acc[MR][2 * PANELS] = {};
    for (i64 k = 0; k < K; ++k) {
        V<T> right[2 * PANELS];
#pragma GCC unroll 8
        for (int j = 0; j < 2 * PANELS; ++j)
            right[j] = load(b + (j / 2) * K * PANEL<T> + k * PANEL<T> + (j % 2) * LANES<T>);
        if (MR > 1)
#pragma GCC unroll 8
            for (int j = 0; j < 2 * PANELS; ++j) keep<T>(right[j]);
#pragma GCC unroll 12
        for (int r = 0; r < MR; ++r) {
            const V<T> left = all(a[r * row + k * column]);
#pragma GCC unroll 8
            for (int j = 0; j < 2 * PANELS; ++j) acc[r][j] += left * right[j];
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

template <class T> using Tile = void (*)(const T*, i64, i64, const T*, i64, T*, i64);

// How many panels are taken at once: with few rows several, to have enough sums under way.
constexpr i64 wide(i64 rows) { return rows == 1 ? 4 : rows == 2 || (REGISTERS == 32 && rows <= 6) ? 2 : 1; }

template <class T, int PANELS> static Tile<T> tile_of(i64 rows) {
    static constexpr Tile<T> by_rows[] = {nullptr, tile<T, 1, PANELS, false>, tile<T, 2, PANELS, false>,
        tile<T, 3, PANELS, false>, tile<T, 4, PANELS, false>, tile<T, 5, PANELS, false>, tile<T, 6, PANELS, false>,
#if defined(__AVX512F__) || defined(__aarch64__)
        tile<T, 7, PANELS, false>, tile<T, 8, PANELS, false>, tile<T, 9, PANELS, false>, tile<T, 10, PANELS, false>,
        tile<T, 11, PANELS, false>, tile<T, 12, PANELS, false>,
#endif
    };
    return by_rows[rows];
}
template <class T> static Tile<T> tile_of(i64 rows, i64 panels) {
    if (panels == 1) return tile_of<T, 1>(rows);
    static constexpr Tile<T> by_rows[] = {nullptr, tile<T, 1, 4, false>, tile<T, 2, 2, false>,
        tile<T, 3, 2, false>, tile<T, 4, 2, false>, tile<T, 5, 2, false>, tile<T, 6, 2, false>};
    return by_rows[rows];
}

// C = A B for `outer` blocks of `rows` rows each; rows lda, blocks `outer_a` apart. C has `columns` columns, of which
// those beyond the last whole panel go through a buffer.
template <class T> struct Rows {
    const T* a;
    i64 outer, outer_a, rows, lda;
};
template <class T>
static void product(const Rows<T>& A, const Panels<T>& B, T* c, i64 outer_c, i64 ldc, i64 columns) {
    if (A.rows == 0 || A.outer == 0) return;
    const i64 blocks = (A.rows + TILE - 1) / TILE, height = (A.rows + blocks - 1) / blocks;
    const i64 whole = columns / PANEL<T>;
    for (i64 p = 0, panels; p * PANEL<T> < columns; p += panels) {
        panels = whole - p >= wide(height) ? wide(height) : 1;
        for (i64 o = 0; o < A.outer; ++o)
            for (i64 r = 0; r < A.rows; r += height) {
                const i64 m = least(height, A.rows - r), at_once = wide(m) == panels ? panels : 1;
                const T* a = A.a + o * A.outer_a + r * A.lda;
                T* to = c + o * outer_c + r * ldc + p * PANEL<T>;
                if (p < whole) {
                    for (i64 q = 0; q < panels; q += at_once)
                        tile_of<T>(m, at_once)(a, A.lda, 1, B.panel(p + q), B.K, to + q * PANEL<T>, ldc);
                } else {
                    T part[TILE * PANEL<T>];
                    tile_of<T, 1>(m)(a, A.lda, 1, B.panel(p), B.K, part, PANEL<T>);
                    for (i64 i = 0; i < m; ++i)
                        memcpy(to + i * ldc, part + i * PANEL<T>, (columns - p * PANEL<T>) * sizeof(T));
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

// to[k * PANEL + c] = from[c][k] for one vector of columns c (a null row is zero), k < K.
template <class T> static void interleave(T* to, const T* const* from, i64 K) {
    i64 k = 0;
#if defined(LAYERNORM_SHUFFLES)
    for (; k + LANES<T> <= K; k += LANES<T>) {
        V<T> row[LANES<T>];
#pragma GCC unroll 16
        for (int c = 0; c < LANES<T>; ++c) row[c] = from[c] ? load(from[c] + k) : V<T>{};
        transpose<T, LANES<T> / 2>(row);
#pragma GCC unroll 16
        for (int c = 0; c < LANES<T>; ++c) store(to + (k + c) * PANEL<T>, row[c]);
    }
#endif
    for (; k < K; ++k)
        for (int c = 0; c < LANES<T>; ++c) to[k * PANEL<T> + c] = from[c] ? from[c][k] : T(0);
}

// --- without packing: for a call that uses a matrix only a few times ---

// The first n elements at p, 0 in the other lanes.
template <class T> INLINE V<T> load_first(const T* p, i64 n) {
    T lane[LANES<T>] = {};
    memcpy(lane, p, n * sizeof(T));
    return load(lane);
}

// c[j] = sum over k of w[j][k] * a[k], j < units.
template <class T> static void dense(const T* a, const T* w, i64 K, i64 units, T* c) {
    constexpr int N = 4;
    const i64 whole = K / LANES<T> * LANES<T>, rest = K - whole;
    for (i64 j = 0; j < units; j += N) {
        const i64 n = least(N, units - j);
        const T* row[N];
        for (i64 i = 0; i < N; ++i) row[i] = w + (j + least(i, n - 1)) * K;
        V<T> acc[N] = {};
        for (i64 k = 0; k < whole; k += LANES<T>)
            for (int i = 0; i < N; ++i) acc[i] += load(row[i] + k) * load(a + k);
        if (rest)
            for (int i = 0; i < N; ++i) acc[i] += load_first(row[i] + whole, rest) * load_first(a + whole, rest);
        for (i64 i = 0; i < n; ++i) c[j + i] = sum<T>(acc[i]);
    }
}

// c[k] = sum over j of a[j] * w[j][k], from <= k < end, for `blocks` of `units` rows j, in a they are `apart`.
template <class T>
static void dense_transposed(const T* a, const T* w, i64 blocks, i64 units, i64 apart, i64 K, i64 from, i64 end, T* c) {
    constexpr int N = 8;
    memset(c + from, 0, (end - from) * sizeof(T));
    for (i64 g = 0; g < blocks; ++g, a += apart, w += units * K)
        for (i64 j = 0; j < units; j += N) {
            const i64 n = least(N, units - j);
            const T *left = a + j, *row = w + j * K;
            i64 k = from;
            for (; k + LANES<T> <= end; k += LANES<T>) {
                V<T> sum = load(c + k);
                if (n == N)
                    for (int i = 0; i < N; ++i) sum += all(left[i]) * load(row + i * K + k);
                else
                    for (i64 i = 0; i < n; ++i) sum += all(left[i]) * load(row + i * K + k);
                store<T>(c + k, sum);
            }
            for (; k < end; ++k)
                for (i64 i = 0; i < n; ++i) c[k] += left[i] * row[i * K + k];
        }
}

// c[k] = sum over r of a[r * lda] * b[r][k], k < K; rows of b are ldb apart.
template <class T> static void outer(const T* a, i64 lda, const T* b, i64 ldb, i64 rows, i64 K, T* c) {
    i64 k = 0;
    for (; k + LANES<T> <= K; k += LANES<T>) {
        V<T> sum = {};
        for (i64 r = 0; r < rows; ++r) sum += all(a[r * lda]) * load(b + r * ldb + k);
        store<T>(c + k, sum);
    }
    for (; k < K; ++k) {
        c[k] = 0;
        for (i64 r = 0; r < rows; ++r) c[k] += a[r * lda] * b[r * ldb + k];
    }
}

}  // namespace LAYERNORM_ISA
