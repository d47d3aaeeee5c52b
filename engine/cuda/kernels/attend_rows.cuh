// What attention of many rows and of few have in common: a block has 32 rows, each a token and a query head, and a head of
// keys and values, and goes through a split.
#pragma once

#include "attention_codes.cuh"

static const int TILE_ROWS = 16;
static const int BLOCK_ROWS = 2 * TILE_ROWS;
static const int ROWS_A_WARP = BLOCK_ROWS / SPLIT_WARPS;

struct RowsShared {
    uint4 weights[2][2][SPLIT_WARPS][WARP];        // A: [low][tile of rows][tile of tokens][lane]
    uint4 values[SPLIT_WARPS][CHUNK / 16][WARP];   // B: [tile of tokens][two tiles of features][lane]; at last, numbers
    RowParts<BLOCK_ROWS> parts;
    int32 positions[BLOCK_ROWS];                   // -1: there is no such row
    float query_scales[BLOCK_ROWS];
    float so_far[BLOCK_ROWS], total[BLOCK_ROWS];   // the largest score, and the sum of weights
    float before[BLOCK_ROWS], added[BLOCK_ROWS];   // see Joint
    float pair_scales[BLOCK_ROWS];
    int32 sees[BLOCK_ROWS];                        // anything of the split
};

// Of it and, behind it, of queries: 8192 bytes for each chunk, as launches have it.
static_assert(sizeof(RowsShared) == 53248, "see engine/cuda/attention.py");

// Which token of the step and which head of the group a row of a block is.
struct RowTile {
    int first, end, group;

    KESTREL_DEVICE RowTile(const CodeAttention& args, int tile) {
        group = args.query_heads / args.layout.heads;
        first = tile * BLOCK_ROWS;
        end = min(first + BLOCK_ROWS, args.rows * group);
    }
    KESTREL_DEVICE bool has(int row) const { return first + row < end; }
    KESTREL_DEVICE int token(int row) const { return (first + row) / group; }
    KESTREL_DEVICE int head(int row) const { return (first + row) % group; }
    KESTREL_DEVICE int first_token() const { return first / group; }
    KESTREL_DEVICE int last_token() const { return (end - 1) / group; }
};

// Queries: [low][tile of rows][tile of features][lane].
template <int CHUNKS>
KESTREL_DEVICE uint4* query_tiles(int low, int tile) {
    return (uint4*)dynamic_shared() + sizeof(RowsShared) / 16 + (2 * low + tile) * CHUNKS * CHUNK_TILES * WARP;
}

// AT_ONCE: how many rows a warp waits for together.
template <int CHUNKS, int AT_ONCE>
KESTREL_DEVICE void load_queries(const CodeAttention& args, RowsShared& shared, const RowTile& rows, int kv_head) {
    int width = args.layout.width, heads = args.query_heads + 2 * args.layout.heads;
#pragma unroll 1
    for (int start = ROWS_A_WARP * warp_index(); start < ROWS_A_WARP * (warp_index() + 1); start += AT_ONCE) {
        HeadRow<CHUNKS> queries[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            if (!rows.has(start + i)) continue;
            int64 head = rows.token(start + i) * (int64)heads + kv_head * rows.group + rows.head(start + i);
            queries[i].load(args.qkv + head * width, width);
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            int row = start + i, tile = row / TILE_ROWS;
            if (!rows.has(row)) continue;
            bool upper = row % TILE_ROWS >= 8;
            float scale = store_query(
                queries[i], width, row % 8, query_tiles<CHUNKS>(0, tile), upper, query_tiles<CHUNKS>(1, tile), upper
            );
            if (lane_index() == 0) shared.query_scales[row] = scale * (args.scale * LOG2_E);
        }
    }
}

// base: the first token's.
KESTREL_DEVICE void find_positions(RowsShared& shared, const RowTile& rows, int32 base) {
    if (threadIdx.x >= BLOCK_ROWS) return;
    shared.positions[threadIdx.x] = rows.has(threadIdx.x) ? base + rows.token(threadIdx.x) : -1;
}

// Of a warp's tokens and all rows: [tile of rows][half]. keys: the first chunk; it changes.
template <int CHUNKS>
KESTREL_DEVICE void row_scores(
    const WarpTokens& tokens, const RowsShared& shared, KeyChunk& keys, const LaneScales& key_scales,
    LaneRow (&scores)[2][2]
) {
    int tiles = num_feature_tiles(tokens.width);
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
        int32 high[4][4] = {}, low[4][4] = {};
#pragma unroll
        for (int chunk = 0; chunk < CHUNKS; ++chunk) {
            if (chunk > 0 || (CHUNKS > 1 && tile > 0)) keys.load<false>(tokens, chunk);
#pragma unroll
            for (int i = 0; i < CHUNK_TILES; ++i) {
                int features = chunk * CHUNK_TILES + i;
                if (features >= tiles) continue;
                uint4 high_queries = query_tiles<CHUNKS>(0, tile)[features * WARP + lane_index()];
                uint4 low_queries = query_tiles<CHUNKS>(1, tile)[features * WARP + lane_index()];
                for (int j = 0; j < 4; ++j) {
                    uint32 b[2];
                    keys.tile(i, j, b);
                    multiply(high[j], high_queries, b);
                    multiply(low[j], low_queries, b);
                }
            }
        }
        for (int half = 0; half < 2; ++half) {
            float query_scale = shared.query_scales[TILE_ROWS * tile + 8 * half + lane_index() / 4];
            for (int index = 0; index < LANE_TOKENS; ++index) {
                int at = 2 * half + index % 2;
                int32 pairs = pair_sum(high[index / 2][at], low[index / 2][at]);
                scores[tile][half].of[index] = (float)pairs * query_scale * key_scales.of[index];
            }
        }
    }
}

// hides: some of the tokens, at `first` and after, from some of the rows.
KESTREL_DEVICE void find_largest(RowsShared& shared, LaneRow (&scores)[2][2], bool hides, int32 first, int window) {
    for (int tile = 0; tile < 2; ++tile)
        for (int half = 0; half < 2; ++half) {
            int row = TILE_ROWS * tile + 8 * half + lane_index() / 4;
            LaneRow& found = scores[tile][half];
            if (hides) {
                int32 position = shared.positions[row];
                found.hide(first, oldest_seen(position, window), position);
            }
            float largest = found.largest();
            if (lane_index() % 4 == 0) shared.parts.put_largest(row, warp_index(), largest);
        }
}

KESTREL_DEVICE void weigh_rows(RowsShared& shared, LaneRow (&scores)[2][2], const LaneScales& value_scales) {
    for (int tile = 0; tile < 2; ++tile)
        for (int half = 0; half < 2; ++half) {
            int row = TILE_ROWS * tile + 8 * half + lane_index() / 4;
            uint32 heaviest;
            float total = scores[tile][half].weigh(shared.parts.largest_of(row), value_scales, heaviest);
            if (lane_index() % 4 == 0) shared.parts.put_weights(row, warp_index(), total, heaviest);
        }
}

// Values of the warp's tokens, as lanes of other warps read them.
KESTREL_DEVICE void share_values(RowsShared& shared, const ValueChunk& values) {
    uint4(*to)[WARP] = shared.values[warp_index()];
    for (int four = 0; four < 4; ++four) {
        uint32 words[2][4];
        values.tiles(four, words);
        to[2 * four][lane_index()] = make_uint4(words[0][0], words[1][0], words[0][1], words[1][1]);
        to[2 * four + 1][lane_index()] = make_uint4(words[0][2], words[1][2], words[0][3], words[1][3]);
    }
}

KESTREL_DEVICE void share_weights(RowsShared& shared, const LaneRow (&rows)[2][2]) {
    for (int tile = 0; tile < 2; ++tile) {
        uint32 high[2][2], low[2][2];  // [half of the rows][half of the tokens]
        for (int half = 0; half < 2; ++half) {
            float heaviest = shared.parts.heaviest_of(TILE_ROWS * tile + 8 * half + lane_index() / 4);
            rows[tile][half].pairs(heaviest, high[half], low[half]);
        }
        int warp = warp_index(), lane = lane_index();
        shared.weights[0][tile][warp][lane] = make_uint4(high[0][0], high[1][0], high[0][1], high[1][1]);
        shared.weights[1][tile][warp][lane] = make_uint4(low[0][0], low[1][0], low[0][1], low[1][1]);
    }
}

// Of a split that starts at `start`, and tokens up to before `end`: scores from queries and a warp's keys, and the first
// chunk of values. scales: of the keys, then of the values. What other warps need is there behind a barrier.
template <int CHUNKS>
KESTREL_DEVICE void score_split(
    const CodeAttention& args, const WarpTokens& tokens, int32 start, int32 end, KeyChunk& keys, LaneScales& scales,
    RowsShared& shared, LaneRow (&scores)[2][2]
) {
    row_scores<CHUNKS>(tokens, shared, keys, scales, scores);
    ValueChunk values;
    values.load<false>(tokens, 0);
    // Whether any row doesn't see all of the split. (Those that there aren't may see what they like.)
    bool hides_old = args.window > 0 && (uint32)start + args.window < (uint32)end;
    bool hides = hides_old || start + SPLIT > shared.positions[0] + 1;
    find_largest(shared, scores, hides, start + WARP_TOKENS * warp_index(), args.window);
    share_values(shared, values);
    scales.load<false>(tokens);
}

// Behind a barrier scores become weights, as sums need them. They are there behind a barrier.
KESTREL_DEVICE void weigh_split(RowsShared& shared, LaneRow (&scores)[2][2], const LaneScales& value_scales) {
    weigh_rows(shared, scores, value_scales);
    __syncthreads();
    share_weights(shared, scores);
}

// Another chunk of values, by all warps.
KESTREL_DEVICE void change_values(const WarpTokens& tokens, int chunk, RowsShared& shared) {
    ValueChunk values;
    values.load<false>(tokens, chunk);
    __syncthreads();
    share_values(shared, values);
    __syncthreads();
}

// How many tiles of 32 tokens have any before `end`.
KESTREL_DEVICE int token_tiles(int32 start, int32 end) {
    return min(SPLIT_WARPS, (end - start + WARP_TOKENS - 1) / WARP_TOKENS);
}

// What a warp has of 16 rows (warp / 4) and a chunk's features: the tiles 4 (warp % 4) and after, as [t][i] of C.
struct PairSums {
    int32 high[4][4], low[4][4];

    // Over a split.
    KESTREL_DEVICE PairSums(const RowsShared& shared, int token_tiles) : high(), low() {
        int tile = warp_index() / 4, from = warp_index() % 4 * 2, lane = lane_index();
#pragma unroll 2
        for (int k = 0; k < token_tiles; ++k) {
            uint4 high_weights = shared.weights[0][tile][k][lane], low_weights = shared.weights[1][tile][k][lane];
            for (int i = 0; i < 2; ++i) {
                uint4 values = shared.values[k][from + i][lane];
                uint32 first[2] = {values.x, values.y}, second[2] = {values.z, values.w};
                multiply(high[2 * i], high_weights, first);
                multiply(low[2 * i], low_weights, first);
                multiply(high[2 * i + 1], high_weights, second);
                multiply(low[2 * i + 1], low_weights, second);
            }
        }
    }

    // scale: what a pair counts.
    KESTREL_DEVICE float of(int t, int i, float scale) const { return (float)pair_sum(high[t][i], low[t][i]) * scale; }
};
