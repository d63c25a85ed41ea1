// Products on tiles, of the panels that product.h describes: a panel's lines of 32 pairs are two tiles side by side. Blocks
// have up to 32 rows. Along a sum there are whole tiles, zeros where it ends: every element is the same sum in every block.
#pragma once

#include "elements.h"

namespace LAYERNORM_ISA {

constexpr i64 LINE_BYTES = 2 * TILE_BYTES;  // of a panel
constexpr i64 BLOCK_ROWS = 2 * TILE_ROWS;

// This thread's tiles in the shapes of a block of so many rows. Tiles 0 to 3 are C, 4 and 5 are A, 6 and 7 are B. They
// belong to one product: tiles that stay in use slow down what follows.
class BlockTiles {
    i64 rows = 0;

public:
    ~BlockTiles() {
        if (rows) Set::Tiles::release();
    }
    void take(i64 m) {
        if (m == rows) return;
        rows = m;
        const i64 upper = least(m, TILE_ROWS), lower = m - upper;
        const i64 right = lower ? lower : upper;  // tiles 2 and 3: below the others, or beside them
        const i64 heights[8] = {upper, upper, right, right, upper, lower, TILE_ROWS, TILE_ROWS};
        TileShapes shapes;
        for (int n = 0; n < 8; ++n) {
            shapes.rows[n] = uint8_t(heights[n]);
            shapes.bytes[n] = heights[n] ? TILE_BYTES : 0;
        }
        Set::Tiles::shape(shapes);
    }
};

// The left factor: where it begins, and how many bytes it is to the next row, the next 16 rows, the next 32 numbers.
struct TiledRows {
    const void* first;
    i64 row, down, along;
};

// C (+)= A B: DOWN tiles of rows and ACROSS of columns, whose panels are `panel` pairs apart; K pairs.
template <int DOWN, int ACROSS, bool ADD>
static void tile_block(const TiledRows& a, const Pair* b, i64 panel, i64 K, float* c, i64 ldc) {
    static_assert(DOWN * ACROSS <= 4, "");
    const auto place = [&](i64 n) { return c + n / ACROSS * TILE_ROWS * ldc + n % ACROSS * TILE_PAIRS; };
    const i64 c_row = ldc * i64(sizeof *c);
    counted<DOWN * ACROSS>([&](auto n) __attribute__((always_inline)) {
        constexpr int C = decltype(n)::value;
        if constexpr (ADD) Set::Tiles::load<C>(place(C), c_row);
        else Set::Tiles::zero<C>();
    });
    const char* left = static_cast<const char*>(a.first);
    const i64 row = a.row, down = a.down, along = a.along;
    for (i64 k = 0; k < K; k += TILE_PAIRS, left += along, b += TILE_PAIRS * 2 * TILE_PAIRS) {
        counted<DOWN>([&](auto i) __attribute__((always_inline)) {
            Set::Tiles::load<4 + decltype(i)::value>(left + decltype(i)::value * down, row);
        });
        counted<ACROSS>([&](auto j) __attribute__((always_inline)) {
            constexpr int J = decltype(j)::value, B = 6 + J % 2;
            Set::Tiles::load<B>(b + J / 2 * panel + J % 2 * TILE_PAIRS, LINE_BYTES);
            counted<DOWN>([&](auto i) __attribute__((always_inline)) {
                Set::Tiles::multiply<decltype(i)::value * ACROSS + J, 4 + decltype(i)::value, B>();
            });
        });
    }
    counted<DOWN * ACROSS>([&](auto n) __attribute__((always_inline)) {
        Set::Tiles::store<decltype(n)::value>(place(decltype(n)::value), c_row);
    });
}

// `product` on tiles. Blocks of the same height come together: a thread's tiles change their shapes at most once.
template <class X, class Panels>
static void tile_product(const X& A, const Panels& B, float* c, i64 outer_c, i64 ldc, i64 columns) {
    if (A.rows == 0 || A.outer == 0) return;
    constexpr i64 WIDE = 2 * TILE_PAIRS;
    const i64 blocks = (A.rows + BLOCK_ROWS - 1) / BLOCK_ROWS, height = (A.rows + blocks - 1) / blocks;
    const i64 row = A.lda * i64(sizeof *A.a), panel = B.K * WIDE, whole = columns / WIDE;
    BlockTiles tiles;
    const auto all_blocks = [&](i64 from, i64 end, i64 m) {
        if (from == end) return;
        tiles.take(m);
        for (i64 p = 0, panels; p * WIDE < columns; p += panels) {
            panels = m <= TILE_ROWS && whole - p >= 2 ? 2 : 1;
            const bool part = p >= whole;  // the last panel's columns go through a buffer
            float buffer[BLOCK_ROWS * WIDE];
            for (i64 o = 0; o < A.outer; ++o)
                for (i64 r = from; r < end; r += m) {
                    const TiledRows a{A.a + o * A.outer_a + r * A.lda, row, TILE_ROWS * row, TILE_BYTES};
                    float* to = c + o * outer_c + r * ldc + p * WIDE;
                    const auto block = m > TILE_ROWS ? tile_block<2, 2, false>
                        : panels == 2                ? tile_block<1, 4, false>
                                                     : tile_block<1, 2, false>;
                    block(a, B.panel(p), panel, B.K, part ? buffer : to, part ? WIDE : ldc);
                    for (i64 i = 0; part && i < m; ++i)
                        memcpy(to + i * ldc, buffer + i * WIDE, (columns - p * WIDE) * sizeof *to);
                }
        }
    };
    const i64 even = A.rows / height * height;
    all_blocks(0, even, height);
    all_blocks(even, A.rows, A.rows - even);
}

// C (+)= A B for `count` tiles of rows of A, each [K / 16][16 rows][16 pairs]; C is as wide as B.
template <bool ADD, class Panels>
static void tile_sums(const Pair* a, i64 count, const Panels& B, i64 K, float* c) {
    const i64 size = K * TILE_ROWS, row = B.columns;
    BlockTiles tiles;
    const auto all_blocks = [&](i64 from, i64 end, i64 height, auto* block) {
        if (from == end) return;
        tiles.take(height * TILE_ROWS);
        for (i64 p = 0; p < B.count(); ++p)
            for (i64 u = from; u < end; u += height) {
                const TiledRows left{a + u * size, TILE_BYTES, size * i64(sizeof *a), TILE_ROWS * TILE_BYTES};
                block(left, B.panel(p), 0, K, c + u * TILE_ROWS * row + p * 2 * TILE_PAIRS, row);
            }
    };
    all_blocks(0, count / 2 * 2, 2, tile_block<2, 2, ADD>);
    all_blocks(count / 2 * 2, count, 1, tile_block<1, 2, ADD>);
}

}  // namespace LAYERNORM_ISA
