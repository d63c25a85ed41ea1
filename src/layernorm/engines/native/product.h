// Matrix products of a few rows with a matrix that is used many times: B is packed once into panels of PANEL columns,
// [panel][k][PANEL], so that the inner loop reads it in order. Every element of a product is one sum over k in order,
// whatever the other rows are and however they are shared out among threads. k counts factors F of DEPTH numbers each.
#pragma once

#include "tile_product.h"

namespace LAYERNORM_ISA {

template <class F> constexpr int PANEL = TILED<F> ? 32 : 2 * LANES<F>;
constexpr int TILE = Set::TILE;  // rows, of two vectors each
// Sums are over a multiple of so many numbers; what a matrix lacks is zeros.
template <class F> constexpr int WHOLE = TILED<F> ? 32 : DEPTH<F>;

template <class F> struct Panels {
    F* data;
    i64 K, columns;  // columns: a multiple of PANEL, zero beyond those that the matrix has

    i64 count() const { return columns / PANEL<F>; }
    F* panel(i64 p) const { return data + p * K * PANEL<F>; }
};

// Adds to `acc` the products of a tile, as far as A can be read by vectors, and returns for how many k it has.
template <class F, int MR, int WIDTH>
INLINE i64 add_by_lanes(V<SumOf<F>> (*acc)[WIDTH], const F* a, i64 row, i64 column, const F* b, i64 K) {
    constexpr int N = LANES<F>;
    const auto read_b = [&](V<F>* right, i64 k) __attribute__((always_inline)) {
#pragma GCC unroll 8
        for (int j = 0; j < WIDTH; ++j) {
            right[j] = load(b + (j / 2) * K * PANEL<F> + k * PANEL<F> + (j % 2) * N);
            if (WIDTH <= 2 && N == 4) Set::keep(right[j]);  // or GCC 12 moves sums from register to register
        }
    };
    i64 k = 0;
    if (column == 1) {  // a vector has N factors of a row
        for (; k + N <= K; k += N) {
            V<F> left[MR];
#pragma GCC unroll 12
            for (int r = 0; r < MR; ++r) left[r] = load(a + r * row + k);
            counted<N>([&](auto lane) __attribute__((always_inline)) {
                V<F> right[WIDTH];
                read_b(right, k + decltype(lane)::value);
#pragma GCC unroll 12
                for (int r = 0; r < MR; ++r)
#pragma GCC unroll 8
                    for (int j = 0; j < WIDTH; ++j) Set::add_by_lane<decltype(lane)::value>(acc[r][j], right[j], left[r]);
            });
        }
    } else if constexpr (MR % N == 0) {
        for (; row == 1 && k < K; ++k) {  // a vector has a factor of each of N rows
            V<F> right[WIDTH];
            read_b(right, k);
            counted<MR / N>([&](auto block) __attribute__((always_inline)) {
                constexpr int R = decltype(block)::value * N;
                const V<F> left = load(a + k * column + R);
                counted<N>([&](auto lane) __attribute__((always_inline)) {
                    constexpr int LANE = decltype(lane)::value;
#pragma GCC unroll 8
                    for (int j = 0; j < WIDTH; ++j) Set::add_by_lane<LANE>(acc[R + LANE][j], right[j], left);
                });
            });
        }
    }
    return k;
}

// C[MR][WIDTH vectors] (+)= A[MR][K] B; factor (r, k) of A is a[r * row + k * column]. B: the first vector of a panel, or
// whole panels.
template <class F, int MR, int WIDTH, bool ADD>
static void tile(const F* a, i64 row, i64 column, const F* b, i64 K, SumOf<F>* c, i64 ldc) {
    using T = SumOf<F>;
    V<T> acc[MR][WIDTH] = {};
#pragma GCC unroll 12
    for (int r = 0; r < MR; ++r)  // C is far away, and is wanted when the sums are ready
#pragma GCC unroll 8
        for (int j = 0; j < WIDTH; ++j) __builtin_prefetch(c + r * ldc + j * LANES<T>, 1);
    i64 k = 0;
    if constexpr (Set::BY_LANE) k = add_by_lanes<F, MR, WIDTH>(acc, a, row, column, b, K);
    for (; k < K; ++k) {
        V<F> right[WIDTH];
#pragma GCC unroll 8
        for (int j = 0; j < WIDTH; ++j)
            right[j] = load(b + (j / 2) * K * PANEL<F> + k * PANEL<F> + (j % 2) * LANES<F>);
        if (MR > 1)
#pragma GCC unroll 8
            for (int j = 0; j < WIDTH; ++j) Set::keep(right[j]);
        if (MR > 2)  // a panel outside of the first cache is read too late by itself; with fewer rows this only adds to reading
#pragma GCC unroll 8
            for (int j = 0; j < WIDTH; ++j)
                if (j * VECTOR_BYTES % 64 == 0)
                    __builtin_prefetch(b + (j / 2) * K * PANEL<F> + (k + 8) * PANEL<F> + (j % 2) * LANES<F>);
#pragma GCC unroll 12
        for (int r = 0; r < MR; ++r) {
            const V<F> left = all(a[r * row + k * column]);
#pragma GCC unroll 8
            for (int j = 0; j < WIDTH; ++j) add_product<F>(acc[r][j], left, right[j]);
        }
    }
#pragma GCC unroll 12
    for (int r = 0; r < MR; ++r)
#pragma GCC unroll 8
        for (int j = 0; j < WIDTH; ++j) {
            T* to = c + r * ldc + j * LANES<T>;
            store(to, ADD ? load(to) + acc[r][j] : acc[r][j]);
        }
}

template <class F> using Tile = void (*)(const F*, i64, i64, const F*, i64, SumOf<F>*, i64);

// How many panels a tile takes at once. A tile of few rows takes several, to have enough sums under way: 16 for the
// short vectors of a processor that multiplies four at once.
constexpr i64 wide(i64 rows) {
    if (rows == 1 || (rows == 2 && Set::REGISTERS == 32 && VECTOR_BYTES == 16)) return 4;
    return rows == 2 || (Set::REGISTERS == 32 && rows <= Set::TILE / 2) ? 2 : 1;
}

// The tile of so many rows: of one vector, of a panel, or of wide(rows) panels.
enum Width { VECTOR, ONE_PANEL, WIDE };
template <class F, int... ROW> static Tile<F> tile_of(i64 rows, Width width, const Lanes<ROW...>&) {
    static constexpr Tile<F> tiles[3][TILE] = {{tile<F, ROW + 1, 1, false>...}, {tile<F, ROW + 1, 2, false>...},
        {tile<F, ROW + 1, 2 * wide(ROW + 1), false>...}};
    return tiles[width][rows - 1];
}
template <class F> static Tile<F> tile_of(i64 rows, Width width) { return tile_of<F>(rows, width, AllLanes<TILE>{}); }

// C = A B for `outer` blocks of `rows` rows each; rows lda numbers, blocks `outer_a` apart. C has `columns` columns, of
// which those beyond the last whole panel go through a buffer.
template <class X> struct Rows {
    const X* a;
    i64 outer, outer_a, rows, lda;
};
template <class F>
static void product(
    const Rows<ElementOf<F>>& A, const Panels<F>& B, SumOf<F>* c, i64 outer_c, i64 ldc, i64 columns) {
    if constexpr (TILED<F>) return tile_product(A, B, c, outer_c, ldc, columns);
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
                        tile_of<F>(m, at_once > 1 ? WIDE : ONE_PANEL)(a, lda, 1, B.panel(p + q), B.K, to + q * PANEL<F>, ldc);
                } else if (const i64 rest = columns - p * PANEL<F>; rest == LANES<F>) {
                    tile_of<F>(m, VECTOR)(a, lda, 1, B.panel(p), B.K, to, ldc);
                } else {
                    SumOf<F> part[TILE * PANEL<F>];
                    tile_of<F>(m, rest < LANES<F> ? VECTOR : ONE_PANEL)(a, lda, 1, B.panel(p), B.K, part, PANEL<F>);
                    for (i64 i = 0; i < m; ++i) memcpy(to + i * ldc, part + i * PANEL<F>, rest * sizeof *to);
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

// Transposes 16 rows of 16 factors, which lie one after the other.
template <class F> static void transpose_square(F* square) {
#if defined(LAYERNORM_SHUFFLES)
    if constexpr (LANES<F> == 16) {
        V<F> row[16];
#pragma GCC unroll 16
        for (int i = 0; i < 16; ++i) row[i] = load(square + 16 * i);
        transpose<F, 8>(row);
#pragma GCC unroll 16
        for (int i = 0; i < 16; ++i) store(square + 16 * i, row[i]);
        return;
    }
#endif
    for (int i = 0; i < 16; ++i)
        for (int j = 0; j < i; ++j) {
            const F other = square[16 * i + j];
            square[16 * i + j] = square[16 * j + i];
            square[16 * j + i] = other;
        }
}

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

// --- without packing: for a call that uses a matrix only a few times. A number that is read of it serves all rows ---

constexpr i64 DIRECT_ROWS = 32;  // rows of the other factor, at most
constexpr i64 FEW_STEPS = 8;     // up to so many steps all of these; over more, packing pays sooner
constexpr int DENSE_UNITS = 4;   // rows of the matrix in a tile of `dense`
constexpr int DENSE_ROWS = Set::REGISTERS == 32 ? 4 : 2;  // and of the other factor
constexpr int TRANSPOSED_UNITS = 8;                       // rows of the matrix that `dense_transposed` adds up at a time
constexpr int OUTER_UNITS = 4;                            // rows of the product that `outer` makes at a time

// A few rows: where each begins, and where its product goes.
template <class X, class T> struct FewRows {
    i64 count = 0;
    const X* a[DIRECT_ROWS];
    T* c[DIRECT_ROWS];
    FewRows(const Rows<X>& A, T* product, i64 outer_c, i64 ldc) {
        for (i64 o = 0; o < A.outer; ++o)
            for (i64 r = 0; r < A.rows; ++r, ++count)
                a[count] = A.a + o * A.outer_a + r * A.lda, c[count] = product + o * outer_c + r * ldc;
    }
};

#if defined(LAYERNORM_SHUFFLES)
// Adds the upper half of each block of S lanes to the lower one: a and b become one vector, first the blocks of a.
// Example: S = 4 lanes a0 a1 a2 a3 and b0 b1 b2 b3 become a0+a2, a1+a3, b0+b2, b1+b3.
template <class T, int S, int... LANE> INLINE V<T> fold(V<T> a, V<T> b, const Lanes<LANE...>&) {
    constexpr int half = S / 2;
    return __builtin_shufflevector(a, b, (LANE / half * S + LANE % half)...) +
        __builtin_shufflevector(a, b, (LANE / half * S + LANE % half + half)...);
}
template <class T, int S> INLINE V<T> fold(V<T> a, V<T> b) {
    if constexpr (S == 1) return a;
    else return fold<T, S>(a, b, AllLanes<LANES<T>>{});
}
#endif
// Stores the first n of four sums, each over the lanes of a vector, in the order of `sum`.
template <class T> INLINE void store_sums(T* to, const V<T>* v, i64 n) {
    constexpr int N = LANES<T>;
#if defined(LAYERNORM_SHUFFLES)
    if constexpr (N >= 4) {
        V<T> four = fold<T, N / 2>(fold<T, N>(v[0], v[1]), fold<T, N>(v[2], v[3]));
        if constexpr (N >= 16) four = fold<T, N / 4>(four, four);
        if constexpr (N >= 8) four = fold<T, 2>(four, four);
        memcpy(to, &four, (n == 4 ? 4 : n) * sizeof(T));  // of four by one instruction: their number is a constant there
        return;
    }
#endif
    for (i64 i = 0; i < n; ++i) to[i] = Set::sum<T>(v[i]);
}

// c[r][j] = sum over k of a[r][k] * w[j][k] for MR rows r and n <= DENSE_UNITS rows j.
template <class F, int MR, class A, class E>
static void dense_tile(const A* const* a, const E* w, i64 K, i64 n, SumOf<F>* const* c, i64 at) {
    using T = SumOf<F>;
    constexpr i64 STEP = LANES<F> * DEPTH<F>;
    const E* row[DENSE_UNITS];
    for (i64 j = 0; j < DENSE_UNITS; ++j) row[j] = w + least(j, n - 1) * K;
    V<T> acc[MR][DENSE_UNITS] = {};
    const auto add = [&](const auto& load_factors) __attribute__((always_inline)) {
        V<F> right[DENSE_UNITS];
#pragma GCC unroll 8
        for (int j = 0; j < DENSE_UNITS; ++j) right[j] = load_factors(row[j]), Set::keep(right[j]);
#pragma GCC unroll 8
        for (int r = 0; r < MR; ++r) {
            const V<F> left = load_factors(a[r]);
#pragma GCC unroll 8
            for (int j = 0; j < DENSE_UNITS; ++j) add_product<F>(acc[r][j], left, right[j]);
        }
    };
    i64 k = 0;
    for (; k + STEP <= K; k += STEP) {
#pragma GCC unroll 8
        for (int j = 0; j < DENSE_UNITS; ++j) __builtin_prefetch(row[j] + DENSE_UNITS * K + k);  // of the next tile
        add([k](const auto* p) __attribute__((always_inline)) { return factors<F>(p + k); });
    }
    if (k < K) add([k, K](const auto* p) __attribute__((always_inline)) { return factors<F>(p + k, K - k); });
#pragma GCC unroll 8
    for (int r = 0; r < MR; ++r) store_sums<T>(c[r] + at, acc[r], n);
}
template <class F, int MR, class A, class E>
INLINE void dense_rows(const A* const* a, i64 rows, const E* w, i64 K, i64 n, SumOf<F>* const* c, i64 at) {
    if constexpr (MR > 0) {
        i64 r = 0;
        for (; r + MR <= rows; r += MR) dense_tile<F, MR>(a + r, w, K, n, c + r, at);
        dense_rows<F, MR - 1>(a + r, rows - r, w, K, n, c + r, at);
    }
}
// c[r][at + j] = sum over k of a[r][k] * w[j][k], j < units.
template <class F, class A, class E>
static void dense(const FewRows<A, SumOf<F>>& few, const E* w, i64 K, i64 units, i64 at) {
    for (i64 j = 0; j < units; j += DENSE_UNITS)
        dense_rows<F, DENSE_ROWS>(few.a, few.count, w + j * K, K, least(DENSE_UNITS, units - j), few.c, at + j);
}

// c[r][k] += sum over j of a[r][at + j] * w[j][k], from <= k < end, j < units; a row of w is K numbers long.
template <class T, class A, class E>
INLINE void add_dense_transposed(const FewRows<A, T>& few, i64 at, const E* w, i64 units, i64 K, i64 from, i64 end) {
    T left[DIRECT_ROWS][TRANSPOSED_UNITS];
    for (i64 r = 0; r < few.count; ++r)
        for (i64 i = 0; i < units; ++i) left[r][i] = widened<T>(few.a[r][at + i]);
    over<T>(end - from, [&](i64 k, i64 n) {
        V<T> right[TRANSPOSED_UNITS];
        for (i64 i = 0; i < units; ++i) right[i] = widen<T>(w + i * K + from + k, n), Set::keep(right[i]);
        for (i64 r = 0; r < few.count; ++r) {
            V<T> sum = widen<T>(few.c[r] + from + k, n);
            for (i64 i = 0; i < units; ++i) sum += all(left[r][i]) * right[i];
            narrow<T>(few.c[r] + from + k, sum, n);
        }
    });
}
// c[r][k] = sum over j of a[r][j] * w[j][k], from <= k < end, for `blocks` of `units` rows j, in a they are `apart`.
template <class T, class A, class E>
static void dense_transposed(
    const FewRows<A, T>& few, const E* w, i64 blocks, i64 units, i64 apart, i64 K, i64 from, i64 end) {
    constexpr i64 N = TRANSPOSED_UNITS;
    for (i64 r = 0; r < few.count; ++r) memset(few.c[r] + from, 0, (end - from) * sizeof(T));
    for (i64 g = 0; g < blocks; ++g, w += units * K) {
        i64 j = 0;
        for (; j + N <= units; j += N) add_dense_transposed(few, g * apart + j, w + j * K, N, K, from, end);
        if (j < units) add_dense_transposed(few, g * apart + j, w + j * K, units - j, K, from, end);
    }
}

// c[j][k] = sum over r of a[r][j] * b[r][k], j < OUTER_UNITS, k < K.
template <class T, class E>
static void outer(const T (*a)[OUTER_UNITS], const E* const* b, i64 rows, i64 K, E* const* c) {
    over<T>(K, [&](i64 k, i64 n) {
        V<T> sum[OUTER_UNITS] = {};
        for (i64 r = 0; r < rows; ++r) {
            V<T> right = widen<T>(b[r] + k, n);
            for (int j = 0; j < OUTER_UNITS; ++j) sum[j] += all(a[r][j]) * right;
        }
        for (int j = 0; j < OUTER_UNITS; ++j) narrow<T>(c[j] + k, sum[j], n);
    });
}

}  // namespace LAYERNORM_ISA
