// Weights as codes, in an order that suits tensor cores and memory alike: tiles of 16 rows, of which up to 16 warps take
// a chain of blocks of 32 inputs each. A chain is four stretches next to each other; a stage has one block of each.
//
// In memory stages follow each other. A stage has pieces of 16 bytes, one of each stretch q and row: of 4-bit codes a
// block's 32 of row r in the first 512 bytes, of row r + 8 in the next, at 8 q + (r ^ 2 q). Blocks of 8-bit codes take
// two pieces, codes 0 to 15 and 16 to 31, in 512 bytes each. Lane 4 r + q of a warp takes what is its own, and where pieces
// lie in shared memory as they do here, no two of eight such lanes go to the same bank.
//
// Rows and blocks beyond the matrix are zeros, up to whole tiles and whole chains.
#pragma once

#include "card.cuh"

// Kernels of 4-bit and of 8-bit codes are compiled beside each other, from the same text: 4 or 8. Else both.
#ifndef ONLY_BITS
#define ONLY_BITS 0
#endif

static const int TILE = 16;        // rows
static const int LANE_ROWS = 8;    // rows r of a tile; with each goes r + 8
static const int STRETCHES = 4;    // of a chain
static const int UNIT_BYTES = 512;

// Where a unit has the piece of stretch q and row r.
KESTREL_DEVICE int piece_of(int q, int r) { return LANE_ROWS * q + (r ^ 2 * q); }

KESTREL_DEVICE int divided_up(int number, int by) { return (number + by - 1) / by; }

struct Tiles {
    const uint8* codes;    // (E, tiles, stages) of 1,024 or 2,048 bytes
    const uint8* scales;   // (E, tiles, stages, 4, 8, 2): of each stretch, rows r and r + 8; or (E, tiles, K / 256, 8, 2)
    const uint8* offsets;  // as scales; null where there are none
    int32 rows;            // N
    int32 columns;         // K
    int32 blocks_a_scale;  // 1, or 8: a scale is shared by 256 inputs
    int32 narrow_scales;   // whether they are float16; else float32
    int32 stretch;         // blocks
    int32 chains;

    KESTREL_DEVICE int num_tiles() const { return divided_up(rows, TILE); }
    KESTREL_DEVICE int num_blocks() const { return columns / WARP; }
    KESTREL_DEVICE int num_stages() const { return chains * stretch; }

    // Which block a stage has of a stretch; may be beyond the last.
    KESTREL_DEVICE int block_of(int stage, int q) const {
        return (stage / stretch * STRETCHES + q) * stretch + stage % stretch;
    }

    // The other way round.
    KESTREL_DEVICE int stage_of(int block) const { return block / stretch / STRETCHES * stretch + block % stretch; }
    KESTREL_DEVICE int stretch_of(int block) const { return block / stretch % STRETCHES; }

    // Scales of a tile.
    KESTREL_DEVICE int64 tile_scales() const {
        return blocks_a_scale == 1 ? (int64)num_stages() * STRETCHES * TILE
                                   : (int64)(num_blocks() / blocks_a_scale) * TILE;
    }

    // Where the scale of a block and of row r is, within a tile; that of row r + 8 follows it.
    KESTREL_DEVICE int scale_place(int block, int r) const {
        if (blocks_a_scale != 1) return (block / blocks_a_scale * LANE_ROWS + r) * 2;
        return ((stage_of(block) * STRETCHES + stretch_of(block)) * LANE_ROWS + r) * 2;
    }
};

// Numbers of either width.
KESTREL_DEVICE float scale_at(const uint8* scales, bool narrow, int64 index) {
    return narrow ? half_to_float(((const uint16*)scales)[index]) : ((const float*)scales)[index];
}

// One block's codes, as words of four: `word(half, i)` are codes 16 half + 4 i and the three that follow. Codes of 4 bits
// come 16-fold: a nibble in the upper half of a byte is that, sign and all.
template <int BITS>
struct BlockWords;

template <>
struct BlockWords<8> {
    static const int PIECES = 2;
    static const int ONE = 1;
    uint4 pieces[2];

    KESTREL_DEVICE uint32 word(int half, int i) const {
        const uint4& piece = pieces[half];
        return i == 0 ? piece.x : i == 1 ? piece.y : i == 2 ? piece.z : piece.w;
    }
};

template <>
struct BlockWords<4> {
    static const int PIECES = 1;
    static const int ONE = 16;
    uint4 pieces[1];

    KESTREL_DEVICE uint32 word(int half, int i) const {
        const uint4& piece = pieces[0];
        uint32 both = i == 0 ? piece.x : i == 1 ? piece.y : i == 2 ? piece.z : piece.w;
        return (half == 0 ? both << 4 : both) & 0xf0f0f0f0u;
    }
};

// Bytes of a stage: two units a piece, of rows r and of rows r + 8.
template <int BITS>
KESTREL_DEVICE int stage_bytes() {
    return 2 * BlockWords<BITS>::PIECES * UNIT_BYTES;
}
