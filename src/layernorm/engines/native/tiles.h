// Tiles: eight registers of up to 16 rows of 64 bytes, and what multiplies them (Intel AMX). A program asks the system for
// them, once (library.cpp). With LAYERNORM_EMULATED_TILES the same is plain C++, so that every processor tests what is
// built on it.
//
// The instructions are written out: GCC's functions for them do not say that they read and write memory.
#pragma once

#include <stddef.h>

#include "elements.h"

#if defined(__AMX_BF16__) || defined(LAYERNORM_EMULATED_TILES)
#define LAYERNORM_TILES
#endif

namespace LAYERNORM_ISA {

// Whether products of these factors are made on tiles.
template <class F> constexpr bool TILED = false;

#if defined(LAYERNORM_TILES)
template <> constexpr bool TILED<Pair> = true;

constexpr i64 TILE_ROWS = 16, TILE_BYTES = 64, TILE_PAIRS = 16;

// The shapes of the eight tiles, as the processor reads them.
struct TileShapes {
    uint8_t palette = 1, start_row = 0, zeros[14] = {};
    uint16_t bytes[8] = {};  // of a row
    uint8_t more_zeros[16] = {};
    uint8_t rows[8] = {};
    uint8_t last_zeros[8] = {};
};
static_assert(sizeof(TileShapes) == 64 && offsetof(TileShapes, bytes) == 16 && offsetof(TileShapes, rows) == 48, "");

#if !defined(LAYERNORM_EMULATED_TILES)

// Gives the tiles their shapes, and zeros.
INLINE void shape_tiles(const TileShapes& shapes) { asm volatile("ldtilecfg %0" : : "m"(shapes)); }
INLINE void release_tiles() { asm volatile("tilerelease" : : : "memory"); }
template <int N> INLINE void zero_tile() { asm volatile("tilezero %%tmm%c0" : : "i"(N)); }
// Rows are so many bytes apart.
template <int N> INLINE void load_tile(const void* from, i64 apart) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(apart), "i"(N) : "memory");
}
template <int N> INLINE void store_tile(void* to, i64 apart) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(apart), "i"(N) : "memory");
}
// C += A B: A has a row of pairs for each row of C, B a row of pairs for each pair of A's.
template <int C, int A, int B> INLINE void multiply_tiles() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(C), "i"(A), "i"(B));
}

#else

// Stops where the processor would.
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

INLINE void shape_tiles(const TileShapes& shapes) { emulated.shape(shapes); }
INLINE void release_tiles() { emulated.shaped = false; }
template <int N> INLINE void zero_tile() {
    must(emulated.there(N));
    memset(emulated.data[N], 0, sizeof emulated.data[N]);
}
template <int N> INLINE void load_tile(const void* from, i64 apart) { emulated.load(N, from, apart); }
template <int N> INLINE void store_tile(void* to, i64 apart) { emulated.store(N, to, apart); }
template <int C, int A, int B> INLINE void multiply_tiles() { emulated.multiply(C, A, B); }

#endif
#endif

}  // namespace LAYERNORM_ISA
