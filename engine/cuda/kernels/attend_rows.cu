// Attention of many tokens of one sequence over 8-bit pages, where their own keys and values are already. A block has 32
// rows, each a token and a query head (of the tokens blockIdx.x from the last one backwards, so that the longest work
// comes first), and a head of keys and values (blockIdx.y). It goes through the splits that its rows see in their order,
// and puts them together as it goes.
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
    int first, end, group, tokens;

    KESTREL_DEVICE RowTile(const CodeAttention& args) {
        group = args.query_heads / args.layout.heads;
        first = (gridDim.x - 1 - blockIdx.x) * BLOCK_ROWS;
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

template <int CHUNKS>
KESTREL_DEVICE void load_queries(
    const CodeAttention& args, RowsShared& shared, const RowTile& rows, int kv_head, int32 base
) {
    int width = args.layout.width, kv_heads = args.layout.heads;
#pragma unroll 1
    for (int i = 0; i < ROWS_A_WARP; ++i) {
        int row = ROWS_A_WARP * warp_index() + i;
        if (!rows.has(row)) break;
        int64 head = rows.token(row) * (int64)(args.query_heads + 2 * kv_heads) + kv_head * rows.group + rows.head(row);
        int tile = row / TILE_ROWS;
        bool upper = row % TILE_ROWS >= 8;
        HeadRow<CHUNKS> query;
        query.load(args.qkv + head * width, width);
        float scale = store_query(
            query, width, row % 8, query_tiles<CHUNKS>(0, tile), upper, query_tiles<CHUNKS>(1, tile), upper
        );
        if (lane_index() == 0) shared.query_scales[row] = scale * (args.scale * LOG2_E);
    }
    if (threadIdx.x < BLOCK_ROWS) {
        shared.positions[threadIdx.x] = rows.has(threadIdx.x) ? base + rows.token(threadIdx.x) : -1;
        shared.so_far[threadIdx.x] = minus_infinity();
        shared.total[threadIdx.x] = 0.0f;
    }
}

// Of a warp's tokens and all rows: [tile of rows][half].
template <int CHUNKS>
KESTREL_DEVICE void row_scores(
    const WarpTokens& tokens, const RowsShared& shared, const LaneScales& key_scales, LaneRow (&scores)[2][2]
) {
    int tiles = num_feature_tiles(tokens.width);
    KeyChunk keys;
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
        int32 high[4][4] = {}, low[4][4] = {};
#pragma unroll
        for (int chunk = 0; chunk < CHUNKS; ++chunk) {
            if (tile == 0 || CHUNKS > 1) keys.load<false>(tokens, chunk);
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

// One thread a row: what its sums so far and the split's, from `start` on, are multiplied by.
KESTREL_DEVICE void join_row(RowsShared& shared, int row, int32 start, int window) {
    int32 position = shared.positions[row];
    bool sees = position >= start && oldest_seen(position, window) < start + SPLIT;
    shared.sees[row] = sees;
    if (!sees) return;
    float largest = shared.parts.largest_of(row), so_far = fmaxf(shared.so_far[row], largest);
    Joint joint = joint_of(shared.so_far[row], largest, so_far);
    shared.so_far[row] = so_far;
    shared.total[row] = joint.join(shared.total[row], shared.parts.total_of(row));
    shared.before[row] = joint.before;
    shared.added[row] = joint.added;
    shared.pair_scales[row] = pair_scale(shared.parts.heaviest_of(row));
}

// A warp has of 16 rows (warp / 4) and a chunk's features the tiles 4 (warp % 4) and after: sums[t][i] as C.
typedef float RowSums[4][4];

KESTREL_DEVICE void add_split(const RowsShared& shared, RowSums& sums, int token_tiles) {
    int tile = warp_index() / 4, from = warp_index() % 4 * 2, lane = lane_index();
    int32 high[4][4] = {}, low[4][4] = {};
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
    for (int half = 0; half < 2; ++half) {
        int row = TILE_ROWS * tile + 8 * half + lane / 4;
        if (!shared.sees[row]) continue;
        Joint joint = {shared.before[row], shared.added[row]};
        float scale = shared.pair_scales[row];
        for (int t = 0; t < 4; ++t)
            for (int i = 2 * half; i < 2 * half + 2; ++i)
                sums[t][i] = joint.join(sums[t][i], (float)pair_sum(high[t][i], low[t][i]) * scale);
    }
}

// A chunk's sums of all rows become what the output product reads.
KESTREL_DEVICE void store_rows(
    const CodeAttention& args, RowsShared& shared, const RowTile& rows, const RowSums& sums, int kv_head, int chunk
) {
    float* numbers = (float*)shared.values;  // (BLOCK_ROWS, CHUNK)
    int tile = warp_index() / 4, from = warp_index() % 4 * 4, width = args.layout.width;
    __syncthreads();
    for (int t = 0; t < 4; ++t)
        for (int i = 0; i < 4; ++i) {
            int row = TILE_ROWS * tile + i / 2 * 8 + lane_index() / 4;
            numbers[row * CHUNK + lane_index() % 4 * 32 + i % 2 * 16 + from + t] = sums[t][i];
        }
    __syncthreads();
    int blocks = min(CHUNK, width - CHUNK * chunk) / WARP;
    for (int job = warp_index(); job < BLOCK_ROWS * blocks; job += SPLIT_WARPS) {
        int row = job / blocks, feature = job % blocks * WARP + lane_index();
        if (!rows.has(row)) break;
        float value = numbers[row * CHUNK + feature] * (1.0f / shared.total[row]);
        int column = (kv_head * rows.group + rows.head(row)) * width + CHUNK * chunk + feature;
        store_activation(args.out, rows.token(row), column, value);
    }
}

template <int CHUNKS>
KESTREL_DEVICE void attend_rows(const CodeAttention& args) {
    RowsShared& shared = *(RowsShared*)dynamic_shared();
    RowTile rows(args);
    int kv_head = blockIdx.y;
    wait_for_previous();
    let_next_start();
    int32 base = (int32)args.step->first, oldest = oldest_seen(base + rows.first_token(), args.window);
    int32 end = base + rows.last_token() + 1;
    load_queries<CHUNKS>(args, shared, rows, kv_head, base);
    RowSums sums[CHUNKS] = {};
    for (int32 start = oldest / SPLIT * SPLIT; start < end; start += SPLIT) {
        int32 token = start + WARP_TOKENS * warp_index();
        WarpTokens tokens(args, kv_head, token, end);
        LaneRow scores[2][2];
        LaneScales scales;
        scales.load<true>(tokens);
        __syncthreads();  // what the split before has left is not needed any more
        row_scores<CHUNKS>(tokens, shared, scales, scores);
        ValueChunk values;
        values.load<false>(tokens, 0);
        scales.load<false>(tokens);
        // Whether any row doesn't see all of the split. (Those that there aren't may see what they like.)
        bool hides_old = args.window > 0 && (uint32)start + args.window < (uint32)end;
        bool hides = hides_old || start + SPLIT > shared.positions[0] + 1;
        find_largest(shared, scores, hides, token, args.window);
        share_values(shared, values);
        __syncthreads();
        weigh_rows(shared, scores, scales);
        __syncthreads();
        share_weights(shared, scores);
        if (threadIdx.x < BLOCK_ROWS) join_row(shared, threadIdx.x, start, args.window);
        __syncthreads();
        int token_tiles = min(SPLIT_WARPS, (end - start + WARP_TOKENS - 1) / WARP_TOKENS);
#pragma unroll
        for (int chunk = 0; chunk < CHUNKS; ++chunk) {
            if (chunk > 0) {
                values.load<false>(tokens, chunk);
                __syncthreads();
                share_values(shared, values);
                __syncthreads();
            }
            add_split(shared, sums[chunk], token_tiles);
        }
    }
#pragma unroll
    for (int chunk = 0; chunk < CHUNKS; ++chunk) store_rows(args, shared, rows, sums[chunk], kv_head, chunk);
}

KESTREL_KERNEL_SHARING(attend_rows_128, ATTEND_THREADS, 2, CodeAttention) { attend_rows<1>(args); }
KESTREL_KERNEL(attend_rows_256, ATTEND_THREADS, CodeAttention) { attend_rows<2>(args); }
KESTREL_KERNEL(attend_rows_512, ATTEND_THREADS, CodeAttention) { attend_rows<4>(args); }
