// Products with int8 weights. Each row of the matrix has a scale, and each row of the other factor is rounded to int8 by a
// scale of its own. The sums are whole numbers: the same on every instruction set, in any order.
#pragma once

#include "product.h"

namespace LAYERNORM_ISA {

constexpr i64 BYTES = 64;          // rounded rows are so many numbers long, or a multiple; the rest is zeros
constexpr i64 ROUNDED_ROWS = 32;   // rounded at a time
constexpr int QUANTIZED_ROWS = Set::REGISTERS == 32 ? 4 : 2;  // of them in a tile
constexpr int QUANTIZED_UNITS = 4;

// A number whose reciprocal is finite; those of smaller ones may be infinite.
template <class T> constexpr T TINY = sizeof(T) == 4 ? T(__FLT_MIN__) : T(__DBL_MIN__);

// sums[r][j] = sum over k of a[r][k] * w[j][k], for R rows r, each with its total, and n <= QUANTIZED_UNITS rows j.
template <int R>
static void quantized_tile(const int8_t* const* a, [[maybe_unused]] const int32_t* total, const int8_t* w, i64 K, i64 n,
    int32_t (*sums)[QUANTIZED_UNITS]) {
    using Int8 = Set::Int8;
    if constexpr (Int8::AT_ONCE == 0) {
        for (int r = 0; r < R; ++r)
            for (i64 j = 0; j < n; ++j) {
                int32_t sum = 0;
                for (i64 k = 0; k < K; ++k) sum += int32_t(a[r][k]) * int32_t(w[j * K + k]);
                sums[r][j] = sum;
            }
        return;
    }
    const int8_t* row[QUANTIZED_UNITS];
    for (i64 j = 0; j < QUANTIZED_UNITS; ++j) row[j] = w + least(j, n - 1) * K;
    Int8::Integers acc[R][QUANTIZED_UNITS] = {};
    const auto add = [&](i64 k, const int8_t* const* at) __attribute__((always_inline)) {
        Int8::Integers left[R];
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) left[r] = Int8::row_at(a[r] + k);
#pragma GCC unroll 4
        for (int j = 0; j < QUANTIZED_UNITS; ++j) {
            const Int8::Integers right = Int8::weights_at(at[j]);
#pragma GCC unroll 4
            for (int r = 0; r < R; ++r) {
                acc[r][j] = Int8::plus_products(acc[r][j], right, left[r]);
                Set::keep(acc[r][j]);  // in a register: GCC 12 stores a sum in every turn otherwise
            }
        }
    };
    i64 k = 0;
    for (; k + Int8::AT_ONCE <= K; k += Int8::AT_ONCE) {
        const int8_t* at[QUANTIZED_UNITS];
#pragma GCC unroll 4
        for (int j = 0; j < QUANTIZED_UNITS; ++j) {
            at[j] = row[j] + k;
            __builtin_prefetch(at[j] + QUANTIZED_UNITS * K);  // of the next tile
        }
        add(k, at);
    }
    if (k < K) {
        int8_t rest[QUANTIZED_UNITS][Int8::AT_ONCE] = {};
        const int8_t* at[QUANTIZED_UNITS];
        for (int j = 0; j < QUANTIZED_UNITS; ++j) memcpy(rest[j], row[j] + k, K - k), at[j] = rest[j];
        add(k, at);
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
        const auto found = Int8::four_sums(acc[r]) - int32_t(Int8::OFFSET * uint32_t(total[r]));
        memcpy(sums[r], &found, sizeof found);
    }
}

// A few rows of the other factor, rounded to int8, and where the product of each goes.
template <class T> struct RoundedRows {
    i64 count = 0;
    const int8_t* q[ROUNDED_ROWS];
    int32_t total[ROUNDED_ROWS];  // of q
    T scale[ROUNDED_ROWS];
    T* c[ROUNDED_ROWS];

    template <class X> void take(int8_t* memory, const X* x, i64 K, T* product) {
        int8_t* to = memory + count * round_up(K, BYTES);
        scale[count] = round(to, x, K, total[count]);
        q[count] = to, c[count] = product;
        ++count;
    }

    template <int R> void tiles(i64& r, const int8_t* w, const T* scale_w, i64 K, i64 n, i64 at) const {
        for (; r + R <= count; r += R) {
            int32_t sums[R][QUANTIZED_UNITS];
            quantized_tile<R>(q + r, total + r, w, K, n, sums);
            for (int i = 0; i < R; ++i) {
                const auto put = [&](i64 j) __attribute__((always_inline)) {
                    c[r + i][at + j] = T(sums[i][j]) * (scale[r + i] * scale_w[j]);
                };
                if (n == QUANTIZED_UNITS)
                    for (int j = 0; j < QUANTIZED_UNITS; ++j) put(j);
                else
                    for (i64 j = 0; j < n; ++j) put(j);
            }
        }
    }
    // c[r][at + j] = sum over k of row r's k-th number times w[j][k], j < units.
    void multiply(const int8_t* w, const T* scale_w, i64 K, i64 units, i64 at) const {
        for (i64 j = 0; j < units; j += QUANTIZED_UNITS) {
            const i64 n = least(QUANTIZED_UNITS, units - j);
            i64 r = 0;
            tiles<QUANTIZED_ROWS>(r, w + j * K, scale_w + j, K, n, at + j);
            tiles<1>(r, w + j * K, scale_w + j, K, n, at + j);
        }
    }

private:
    // q[k] = x[k] / scale, rounded, and zeros behind it. Returns the scale, the largest |x| / 127. If a number is not finite,
    // the scale is NaN and q is zeros.
    template <class X> static T round(int8_t* q, const X* x, i64 K, int32_t& total) {
        V<T> largest = {}, wrong = {};
        over<T>(K, [&](i64 k, i64 n) {
            const V<T> v = widen<T>(x + k, n), size = v < V<T>{} ? -v : v;
            largest = largest > size ? largest : size;
            wrong += v * T(0);
        });
        T lane[LANES<T>], most = 0;
        memcpy(lane, &largest, sizeof largest);
        for (int i = 0; i < LANES<T>; ++i) most = most > lane[i] ? most : lane[i];
        const T scale = most / 127 + Set::sum<T>(wrong);
        total = 0;
        if (scale != scale) {
            memset(q, 0, round_up(K, BYTES));
            return scale;
        }
        const T inverse = scale >= TINY<T> ? 1 / scale : 0, shift = Exponential<T>::WHOLE;
        Bits<T> totals = {};
        memset(q + (K & -BYTES), 0, round_up(K, BYTES) - (K & -BYTES));
        over<T>(K, [&](i64 k, i64 n) {
            V<T> scaled = widen<T>(x + k, n) * inverse;
            Set::keep(scaled);  // fused with the sum it would be rounded otherwise
            const Bits<T> whole = same_bits<Bits<T>>(scaled + shift) - same_bits<Bits<T>>(all(shift));
            const auto bytes = Set::lowest_bytes<T>(whole);
            totals += whole;
            memcpy(q + k, &bytes, sizeof bytes);
        });
        for (int i = 0; i < LANES<T>; ++i) total += int32_t(totals[i]);
        return scale;
    }
};

}  // namespace LAYERNORM_ISA
