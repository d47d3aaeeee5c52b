// What products of many rows have in common: a product's arguments, and its arithmetic for one block of 32 inputs.
//
// The order of all sums: blocks add up in ascending order within stretches; these add up in ascending order. For
// each block the sum of code * d, with d = high or 254 * high + low, is a whole number, so it has no order; it is
// rounded to float32, then times the matrix's scale; that times the row's scale is added with one rounding. Products
// of a few rows have the same.
#pragma once

#include "activation.cuh"
#include "tiles.cuh"

struct TiledProduct {
    Tiles weights;           // (N, K), of all experts
    const float* bias;       // (N,) or null
    Activation x;            // (T, K)
    float* y;                // (rows, stride): set, or added to
    const int32* order;      // which row of y each place of a tile of rows is; null where nothing is grouped
    const int32* row_tiles;  // expert, first place, places (0: nothing to do), of each tile of rows; null as `order`
    int64 stride;            // of y
    int32 rows;              // of y
    int32 rows_each;         // rows of y that share one of x, next to each other, where they are grouped
    int32 adds;
    int32 gated;             // whether outputs are gates and then their ups, N / 2 (a multiple of 32) each, of which
                             // silu(gate) * up is made; no bias then, and nothing is added to
    Activation out;          // (rows, N / 2): what is made of gates, where a block has 32 neighbours; else that is y

    KESTREL_DEVICE int num_outputs() const { return gated ? weights.rows / 2 : weights.rows; }
};

// What fragment `a` of `mma_s8` is made of: words of this lane, which is 4 r + i, one of each unit of a stage.
template <int BITS>
struct Fragment;

template <>
struct Fragment<4> {
    static const int WORDS = 2;  // of row r and of row r + 8

    // A nibble in the upper half of a byte is 16 times the code, sign and all.
    KESTREL_DEVICE static void of(const uint32* words, uint32* a) {
        a[0] = words[0] << 4 & 0xf0f0f0f0u, a[1] = words[1] << 4 & 0xf0f0f0f0u;
        a[2] = words[0] & 0xf0f0f0f0u, a[3] = words[1] & 0xf0f0f0f0u;
    }
};

template <>
struct Fragment<8> {
    static const int WORDS = 4;  // of row r the first and the second half, of row r + 8 the same

    KESTREL_DEVICE static void of(const uint32* words, uint32* a) {
        a[0] = words[0], a[1] = words[2], a[2] = words[1], a[3] = words[3];
    }
};

// Whether whole numbers become floats nearly as quickly as products are made.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
static const bool QUICK_CONVERSIONS = true;
#else
static const bool QUICK_CONVERSIONS = false;
#endif

static const int PIECES_BYTES = LANE_ROWS * 16;  // of a unit, for one block

// From block to block of a tile, whose places in memory are by stages.
struct BlockWalk {
    int block, stage, stretch;  // of the four stretches of a chain
    int left;                   // blocks of the stretch, this one among them

    KESTREL_DEVICE explicit BlockWalk(const Tiles& tiles) : block(0), stage(0), stretch(0), left(tiles.stretch) {}

    KESTREL_DEVICE void advance(const Tiles& tiles) {
        ++block, ++stage;
        if (--left > 0) return;
        left = tiles.stretch;
        if (++stretch == STRETCHES)
            stretch = 0;
        else
            stage -= tiles.stretch;
    }

    // From a tile's codes to this lane's word of the block, in the first unit.
    template <int BITS>
    KESTREL_DEVICE uint32 codes() const {
        int place = piece_of(stretch, lane_index() / 4) * 16 + lane_index() % 4 * 4;
        return stage * (Fragment<BITS>::WORDS * UNIT_BYTES) + place;
    }
};

// Which stretch of its row a block is in: number / stretch, as a product. Exact where number * stretch < 2^32.
struct StretchOfBlock {
    uint32 inverse;  // 2^32 / stretch, rounded up; 0: stretches are single blocks

    KESTREL_DEVICE explicit StretchOfBlock(const Tiles& tiles) : inverse(0xffffffffu / (uint32)tiles.stretch + 1) {}

    KESTREL_DEVICE int block(int number) const {
        return inverse == 0 ? number : (int)((uint64)(uint32)number * inverse >> 32);
    }
};

// Scales (or offsets) of a tile, in bytes.
struct ScalePlaces {
    int pair;        // of rows r and r + 8
    bool is_shared;  // by the blocks of a group

    KESTREL_DEVICE explicit ScalePlaces(const Tiles& tiles)
        : pair(tiles.narrow_scales ? 4 : 8), is_shared(tiles.blocks_a_scale != 1) {}

    // From a tile's first to this lane's of a block.
    KESTREL_DEVICE uint32 of(const BlockWalk& at) const {
        int before = is_shared ? at.block / 8 : at.stage * STRETCHES + at.stretch;
        return (before * LANE_ROWS + lane_index() / 4) * pair;
    }
};

// Scales or offsets of a block in rows r and r + 8 of a tile, as they are stored. NARROW: they are float16 for certain.
template <bool NARROW>
struct Scales {
    static const int WORDS = NARROW ? 1 : 2;
    uint32 words[WORDS];  // of float16 the first holds both rows

    KESTREL_DEVICE static Scales at(const uint8* address, const ScalePlaces& places) {
        Scales found;
        found.words[0] = *(const uint32*)address;
        if (!NARROW && places.pair == 8) found.words[WORDS - 1] = ((const uint32*)address)[1];
        return found;
    }

    KESTREL_DEVICE float of(bool narrow, int row) const {
        return NARROW || narrow ? half_to_float((uint16)(words[0] >> 16 * row))
                                : __uint_as_float(words[WORDS == 2 ? row : 0]);
    }
};

// How a block's whole number i becomes a float, times a scale, rounded once each. Where conversions are slow, none is
// needed: some floats are the rungs of a ladder, with each step of their bits they go up by the same amount. Sums start
// on such a rung, ZERO, so what they end on, read as a float, is ZERO + i exactly.
enum Ladder {
    // None: both planes make one whole number, which is converted. Sums start from nothing, so that a multiplication has
    // fewer registers to read. With 4 bits codes come 16-fold, and scales are divided by 16: float16 ones exactly.
    CONVERTED = 0,
    // For scales of any kind, i is what it is above ZERO, and two planes make one number in one fmaf. 0x4b400000 + i is
    // 12582912 + i. With 4 bits, whose codes come 16-fold, 0x49400000 + 16 i is 786432 + i.
    SUBTRACTED = 1,
    // The same, where the scale is a float16: (ZERO + i) * scale - ZERO * scale in one fmaf is i * scale rounded once,
    // since ZERO * scale is exact.
    ONE_PLANE = 2,
    // With 4 bits: the smallest floats, from 0 to twice the smallest normal one, go up by 2^-149. Both planes start at
    // 2^19; 254 times the high plane's and the low plane's add up to a multiple of 16 below 2^28, so exactly.
    TWO_PLANES = 3,
};

template <int BITS, int PLANES, bool NARROW>
struct BlockSum {
    static const int LADDER = NARROW && PLANES == 1                           ? ONE_PLANE
                              : QUICK_CONVERSIONS && (NARROW || BITS == 8) ? CONVERTED
                              : NARROW && BITS == 4                        ? TWO_PLANES
                                                                           : SUBTRACTED;
    static const bool IS_SHIFTED = LADDER == ONE_PLANE || LADDER == TWO_PLANES;
    static const int32 START = LADDER == CONVERTED    ? 0
                               : LADDER == TWO_PLANES ? 1 << 19
                               : BITS == 4            ? 0x49400000
                                                      : 0x4b400000;
    // With two planes on a ladder scales of rows are 2^34-fold, and those of matrices 2^-34-fold: with 2^149 for the
    // ladder and the 16th part for 4 bits they would be too large. Only numbers of more than 10^32 notice.
    static constexpr float X_UNIT = LADDER == TWO_PLANES ? 17179869184.0f : 1.0f;
    static constexpr float UNIT_OF_SCALE = LADDER == TWO_PLANES               ? 2.596148429267414e33f  // 2^111
                                           : LADDER == CONVERTED && BITS == 4 ? 0.0625f  // exact
                                                                              : 1.0f;
    static constexpr float ZERO = LADDER == TWO_PLANES ? 0.000486373901367187500f  // 255 * 2^(19 - 149 + 111)
                                  : BITS == 4          ? 786432.0f
                                                       : 12582912.0f;
    static const int PREPARED_BYTES = IS_SHIFTED ? 16 : 8;  // of what is kept of scales
    float scale[2], shift[2];  // of rows r and r + 8

    KESTREL_DEVICE BlockSum(const Scales<NARROW>& scales, bool narrow) {
        #pragma unroll
        for (int row = 0; row < 2; ++row) {
            float found = scales.of(narrow, row);
            scale[row] = found * UNIT_OF_SCALE;
            shift[row] = IS_SHIFTED ? found * -ZERO : 0.0f;
        }
    }

    // What is kept of scales that are narrow for certain: `keep` writes it where this finds it.
    KESTREL_DEVICE static void keep(const Scales<NARROW>& scales, void* to) {
        BlockSum found(scales, true);
        if (IS_SHIFTED)
            *(float4*)to = make_float4(found.scale[0], found.shift[0], found.scale[1], found.shift[1]);
        else
            *(float2*)to = make_float2(found.scale[0], found.scale[1]);
    }
    KESTREL_DEVICE explicit BlockSum(const void* kept) {
        if (IS_SHIFTED) {
            float4 found = *(const float4*)kept;
            scale[0] = found.x, shift[0] = found.y, scale[1] = found.z, shift[1] = found.w;
        } else {
            float2 found = *(const float2*)kept;
            scale[0] = found.x, scale[1] = found.y, shift[0] = shift[1] = 0.0f;
        }
    }

    // Adds to four sums: rows r and r + 8, two of the columns each, which have `x_scales` times X_UNIT.
    KESTREL_DEVICE void add(
        const uint32* a, const uint32* high, const uint32* low, float2 x_scales, float* sums
    ) const {
        int32 c[4] = {START, START, START, START}, fine[4] = {START, START, START, START};
        mma_s8(c, a, high);
        if (PLANES == 2) mma_s8(fine, a, low);
        #pragma unroll
        for (int i = 0; i < 4; ++i) {
            float found = __int_as_float(c[i]), value;
            if (LADDER == CONVERTED) {
                value = (float)(PLANES == 2 ? c[i] * LOW_STEPS + fine[i] : c[i]) * scale[i / 2];
            } else if (LADDER == SUBTRACTED) {
                found -= ZERO;
                if (PLANES == 2) found = fmaf(found, 254.0f, __int_as_float(fine[i]) - ZERO);
                value = found * scale[i / 2];
            } else {
                if (LADDER == TWO_PLANES) found = fmaf(found, 254.0f, __int_as_float(fine[i]));
                value = fmaf(found, scale[i / 2], shift[i / 2]);
            }
            sums[i] = fmaf(value, i % 2 ? x_scales.y : x_scales.x, sums[i]);
        }
    }
};

// What offsets of rows r and r + 8 in a block add to four sums.
KESTREL_DEVICE void add_offsets(const float* offsets, float2 x_sums, float2 x_scales, float* sums) {
    #pragma unroll
    for (int i = 0; i < 4; ++i) {
        float offset = offsets[i / 2];
        sums[i] = fmaf(i % 2 ? x_sums.y : x_sums.x, offset * (i % 2 ? x_scales.y : x_scales.x), sums[i]);
    }
}

// Two tiles of outputs that a warp makes: two neighbours, or gates with their ups.
struct TwoTiles {
    int numbers[2];  // of the tiles, in their matrix; where there is none any more, another one's
    int outputs[2];  // the first of each

    KESTREL_DEVICE TwoTiles(const TiledProduct& args, int two) {
        int tiles = args.weights.num_tiles();
        #pragma unroll
        for (int m = 0; m < 2; ++m) {
            int tile = args.gated ? two : 2 * two + m;
            outputs[m] = tile * TILE;
            numbers[m] = args.gated ? min(two, tiles / 2 - 1) + m * (tiles / 2) : min(tile, tiles - 1);
        }
    }
};
