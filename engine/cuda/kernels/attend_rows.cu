// Attention of many tokens of one sequence over 8-bit pages, where their own keys and values are already. A block has 32
// rows, each a token and a query head (of the tokens blockIdx.x from the last one backwards, so that the longest work
// comes first), and a head of keys and values (blockIdx.y). It goes through the splits that its rows see in their order,
// and puts them together as it goes.
#include "attend_rows.cuh"

KESTREL_DEVICE void begin_rows(RowsShared& shared) {
    if (threadIdx.x >= BLOCK_ROWS) return;
    shared.so_far[threadIdx.x] = minus_infinity();
    shared.total[threadIdx.x] = 0.0f;
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

typedef float RowSums[4][4];  // as PairSums

KESTREL_DEVICE void add_split(const RowsShared& shared, RowSums& sums, int token_tiles) {
    PairSums found(shared, token_tiles);
    for (int half = 0; half < 2; ++half) {
        int row = TILE_ROWS * (warp_index() / 4) + 8 * half + lane_index() / 4;
        if (!shared.sees[row]) continue;
        Joint joint = {shared.before[row], shared.added[row]};
        float scale = shared.pair_scales[row];
        for (int t = 0; t < 4; ++t)
            for (int i = 2 * half; i < 2 * half + 2; ++i) sums[t][i] = joint.join(sums[t][i], found.of(t, i, scale));
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
    RowTile rows(args, gridDim.x - 1 - blockIdx.x);
    int kv_head = blockIdx.y;
    wait_for_previous();
    let_next_start();
    int32 base = (int32)args.step->first, oldest = oldest_seen(base + rows.first_token(), args.window);
    int32 end = base + rows.last_token() + 1;
    load_queries<CHUNKS, ROWS_A_WARP / CHUNKS>(args, shared, rows, kv_head);
    find_positions(shared, rows, base);
    begin_rows(shared);
    RowSums sums[CHUNKS] = {};
    for (int32 start = oldest / SPLIT * SPLIT; start < end; start += SPLIT) {
        WarpTokens tokens(args, kv_head, start + WARP_TOKENS * warp_index(), end);
        LaneScales scales;
        scales.load<true>(tokens);
        __syncthreads();  // what the split before has left is not needed any more
        KeyChunk keys;
        keys.load<false>(tokens, 0);
        LaneRow scores[2][2];
        score_split<CHUNKS>(args, tokens, start, end, keys, scales, shared, scores);
        __syncthreads();
        weigh_split(shared, scores, scales);
        if (threadIdx.x < BLOCK_ROWS) join_row(shared, threadIdx.x, start, args.window);
        __syncthreads();
#pragma unroll
        for (int chunk = 0; chunk < CHUNKS; ++chunk) {
            if (chunk > 0) change_values(tokens, chunk, shared);
            add_split(shared, sums[chunk], token_tiles(start, end));
        }
    }
#pragma unroll
    for (int chunk = 0; chunk < CHUNKS; ++chunk) store_rows(args, shared, rows, sums[chunk], kv_head, chunk);
}

KESTREL_KERNEL_SHARING(attend_rows_128, ATTEND_THREADS, ROOMY ? 2 : 1, CodeAttention) { attend_rows<1>(args); }
KESTREL_KERNEL(attend_rows_256, ATTEND_THREADS, CodeAttention) { attend_rows<2>(args); }
KESTREL_KERNEL(attend_rows_512, ATTEND_THREADS, CodeAttention) { attend_rows<4>(args); }
