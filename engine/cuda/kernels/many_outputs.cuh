// What becomes of the sums of product_many.cu: outputs, or gates with their ups in 8 bits, as the next product reads them.
#pragma once

#include "tile_sums.cuh"

// Which rows a block makes: a tile of them.
struct RowsOfBlock {
    int expert, first, count;  // places of rows

    KESTREL_DEVICE RowsOfBlock(const TiledProduct& args, int tokens)
        : expert(0), first(blockIdx.x * tokens), count(min(tokens, args.rows - first)) {
        if (args.row_tiles == nullptr) return;
        const int32* tile = args.row_tiles + 3 * (int64)blockIdx.x;
        expert = tile[0], first = tile[1], count = tile[2];
    }

    KESTREL_DEVICE int64 row_of_y(const TiledProduct& args, int place) const {
        return args.order != nullptr ? (int64)args.order[first + place] : (int64)first + place;
    }
};

// WARPS: of a block. STRIPES: of 32 outputs, or of 16 gates with their ups. TOKENS: rows. BYTES: of shared memory, which
// is free once nobody reads the last step any more.
//
// Sums go by way of it, so that a warp's outputs of a row are stored together, and in a loop: unrolled for all that a lane
// has, there would be more instructions than the rest takes.
template <int WARPS, int STRIPES, int TOKENS, int BYTES>
struct ManyOutputs {
    static const int OWN_TOKENS = TOKENS * STRIPES / WARPS, COLUMNS = OWN_TOKENS / 8;  // of a warp
    static const int WIDTH = 2 * TILE + 4;                // so that lanes write to different banks
    static const int ROOM = BYTES / (WARPS * WIDTH * 4);  // of a warp, for so many rows
    static const int MOST_ROWS = OWN_TOKENS < ROOM ? OWN_TOKENS : ROOM;
    static const int ROWS = MOST_ROWS >= 32 ? 32 : MOST_ROWS >= 16 ? 16 : 8;  // at a time
    static const int LANES = WARP / 4;  // that have a row's 32 gated neighbours, four each
    static_assert(WARPS * ROWS * WIDTH * 4 <= BYTES, "sums fit in where steps were");
    static_assert(STRIPES % 2 == 0, "32 gates next to each other are made by two warps of a block");
    using Totals = float[2][COLUMNS][4];

    // Of the block's outputs, and which of the warps that share them this is.
    KESTREL_DEVICE static int stripe() { return warp_index() % STRIPES; }
    KESTREL_DEVICE static int part() { return warp_index() / STRIPES; }

    // All threads of the block come here.
    KESTREL_DEVICE static void store(const TiledProduct& args, const RowsOfBlock& tile, const Totals& totals) {
        #pragma unroll
        for (int start = 0; start < OWN_TOKENS; start += ROWS) {
            if (start == 0 || args.gated)
                __syncthreads();  // nobody reads the last step any more, or the other warp's sums
            else
                __syncwarp();
            #pragma unroll
            for (int m = 0; m < 2; ++m)
                #pragma unroll
                for (int n = 0; n < ROWS / 8; ++n)
                    #pragma unroll
                    for (int i = 0; i < 4; ++i) {
                        int place = n * 8 + lane_index() % 4 * 2 + i % 2;
                        int output = m * TILE + i / 2 * LANE_ROWS + lane_index() / 4;
                        sums_of(warp_index())[place * WIDTH + output] = totals[m][start / 8 + n][i];
                    }
            if (args.gated) {
                __syncthreads();
                store_gated(args, tile, part() * OWN_TOKENS + start);
            } else {
                __syncwarp();
                store_sums(args, tile, part() * OWN_TOKENS + start);
            }
        }
    }

    KESTREL_DEVICE static float* sums_of(int warp) { return (float*)dynamic_shared() + warp * (ROWS * WIDTH); }

    // Worked out anew: registers are scarce until here.
    KESTREL_DEVICE static int stored_stripe() {
        uint32 number = stripe();
        keep_in_register(number);
        return blockIdx.y * STRIPES + number;
    }

    // Four rows at a time, 32 gates with their ups each, which this warp and its neighbour have made: of eight rows one
    // warp takes the first four, and the other one the rest.
    KESTREL_DEVICE static void store_gated(const TiledProduct& args, const RowsOfBlock& tile, int start) {
        int four = lane_index() % LANES, column = stored_stripe() / 2 * WARP + four * 4;
        int end = min(ROWS, tile.count - start);
        if (column >= args.out.width) return;
        const float* sums = sums_of(warp_index() / 2 * 2 + four / (TILE / 4)) + four % (TILE / 4) * 4;
        #pragma unroll 1
        for (int first = warp_index() % 2 * 4; first < end; first += 8) {
            int place = first + lane_index() / LANES;
            float4 gates = *(const float4*)(sums + place * WIDTH), ups = *(const float4*)(sums + place * WIDTH + TILE);
            float values[4] = {
                gated(gates.x, ups.x), gated(gates.y, ups.y), gated(gates.z, ups.z), gated(gates.w, ups.w)
            };
            int64 row = tile.row_of_y(args, start + min(place, end - 1));
            store_four(args.out, row, column, place < end, values);
        }
    }

    // A few rows at a time, so that what is added to comes for all of them at once.
    KESTREL_DEVICE static void store_sums(const TiledProduct& args, const RowsOfBlock& tile, int start) {
        const TwoTiles two(args, stored_stripe());
        const float* own = sums_of(warp_index());
        static const int AT_ONCE = 8;
        int output = (lane_index() < TILE ? two.outputs[0] : two.outputs[1]) + lane_index() % TILE;
        int end = min(ROWS, tile.count - start);
        if (output >= args.num_outputs()) return;
        float bias = args.bias != nullptr ? args.bias[output] : -0.0f;  // which changes nothing that it is added to
        #pragma unroll 1
        for (int place = 0; place < end; place += AT_ONCE) {
            float* y[AT_ONCE];
            float before[AT_ONCE];
            #pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) {
                y[i] = args.y + tile.row_of_y(args, start + min(place + i, end - 1)) * args.stride + output;
                before[i] = args.adds ? *y[i] : -0.0f;
            }
            #pragma unroll
            for (int i = 0; i < AT_ONCE; ++i)
                if (place + i < end) *y[i] = before[i] + (own[(place + i) * WIDTH + lane_index()] + bias);
        }
    }
};
