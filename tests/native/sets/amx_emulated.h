// The tiles of AMX in plain C++, so that every processor tests what is built on them. Stops where the processor would.
#pragma once

#include "sets/baseline.h"

namespace LAYERNORM_ISA {

INLINE void must(bool right) {
    if (!right) __builtin_trap();
}
struct EmulatedTiles {
    TileShapes shapes;
    bool shaped = false;
    uint8_t data[8][TILE_ROWS][TILE_BYTES];

    bool there(int n) const { return shaped && shapes.rows[n]; }
    void shape(const TileShapes& given) {
        uint8_t byte[64];
        memcpy(byte, &given, sizeof byte);
        must(byte[0] == 1 && byte[1] == 0);
        for (int i = 2; i < 64; ++i) must((i >= 16 && i < 32) || (i >= 48 && i < 56) || byte[i] == 0);
        for (int n = 0; n < 8; ++n) {
            const int bytes = byte[16 + 2 * n] + 256 * byte[17 + 2 * n], rows = byte[48 + n];
            must(bytes <= TILE_BYTES && rows <= TILE_ROWS && (bytes == 0) == (rows == 0));
        }
        shapes = given;
        shaped = true;
        memset(data, 0, sizeof data);
    }
    void zero(int n) {
        must(there(n));
        memset(data[n], 0, sizeof data[n]);
    }
    void load(int n, const void* from, i64 apart) {
        must(there(n));
        memset(data[n], 0, sizeof data[n]);
        for (i64 r = 0; r < shapes.rows[n]; ++r)
            memcpy(data[n][r], static_cast<const char*>(from) + r * apart, shapes.bytes[n]);
    }
    void store(int n, void* to, i64 apart) const {
        must(there(n));
        for (i64 r = 0; r < shapes.rows[n]; ++r) memcpy(static_cast<char*>(to) + r * apart, data[n][r], shapes.bytes[n]);
    }
    // Within a tile the first numbers of the pairs have one sum, the second ones another, each from 0.
    void multiply(int c, int a, int b) {
        must(there(c) && there(a) && there(b) && a != b && a != c && b != c);
        must(shapes.rows[c] == shapes.rows[a] && shapes.bytes[c] == shapes.bytes[b]);
        must(shapes.bytes[a] == 4 * shapes.rows[b]);
        for (int m = 0; m < shapes.rows[c]; ++m) {
            Floats<16> first = {}, second = {};
            for (int k = 0; k < shapes.rows[b]; ++k) {
                uint32_t left;
                memcpy(&left, data[a][m] + 4 * k, sizeof left);
                const Words<16> right = few<uint32_t, 16>(data[b][k]);
                first += same_bits<float>(left << 16) * same_bits<Floats<16>>(right << 16);
                second += same_bits<float>(left & 0xffff0000) * same_bits<Floats<16>>(right & 0xffff0000);
            }
            const Floats<16> sum = few<float, 16>(data[c][m]) + (first + second);
            memcpy(data[c][m], &sum, sizeof sum);
        }
    }
};
static thread_local EmulatedTiles emulated;

struct amx_emulated_set : baseline_set {
    static constexpr bool PAIRS = true, TILES = true, BFLOAT16_ALONE = true;
    struct Tiles {
        INLINE void shape(const TileShapes& shapes) { emulated.shape(shapes); }
        INLINE void release() { emulated.shaped = false; }
        template <int N> INLINE void zero() { emulated.zero(N); }
        template <int N> INLINE void load(const void* from, i64 apart) { emulated.load(N, from, apart); }
        template <int N> INLINE void store(void* to, i64 apart) { emulated.store(N, to, apart); }
        template <int C, int A, int B> INLINE void multiply() { emulated.multiply(C, A, B); }
    };
};

}  // namespace LAYERNORM_ISA
