// Tiles: eight registers of up to 16 rows of 64 bytes (Intel AMX). An instruction set that has them multiplies with them
// (sets/amx.h); this is what is known of them without it.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace LAYERNORM_ISA {

constexpr int64_t TILE_ROWS = 16, TILE_BYTES = 64, TILE_PAIRS = 16;

// The shapes of the eight tiles, as the processor reads them.
struct TileShapes {
    uint8_t palette = 1, start_row = 0, zeros[14] = {};
    uint16_t bytes[8] = {};  // of a row
    uint8_t more_zeros[16] = {};
    uint8_t rows[8] = {};
    uint8_t last_zeros[8] = {};
};
static_assert(sizeof(TileShapes) == 64 && offsetof(TileShapes, bytes) == 16 && offsetof(TileShapes, rows) == 48, "");

}  // namespace LAYERNORM_ISA
