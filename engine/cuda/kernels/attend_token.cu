// Attention of one token over 8-bit pages, from the row that the QKV product left to what the output product reads. A
// block has a split (blockIdx.x) and a head of keys and values (blockIdx.y), with all query heads that share it; the
// block that has the token's own split writes its keys and values first. The last block of a head to arrive puts its
// splits together.
#include "attention_codes.cuh"

static const int HEAD_SET = 8;  // query heads at once: bytes of theirs and of what is left fill a tile
static const int READ_AHEAD = 16;  // splits, when they are put together

struct HeadScratch {
    float values[WIDEST_HEAD];
    float weights[WIDEST_HEAD];  // of the norm of the warp's first head
};

union TokenScratch {
    HeadScratch heads[SPLIT_WARPS];                 // of each warp
    int4 sums[SPLIT_WARPS][WARP][CHUNK_TILES * 2];  // of each lane, features of its head
};

struct TokenShared {
    uint4 queries[WIDEST_HEAD / WARP][WARP];
    TokenScratch scratch;
    uint4 fresh[2][WIDEST_HEAD / 16];  // the token's own codes: key, value
    float fresh_scales[2];
    float query_scales[HEAD_SET];
    float cosines[WIDEST_HEAD / 2], sines[WIDEST_HEAD / 2];
    RowParts<HEAD_SET> parts;
    uint32 arrived;
};

// What of pages a warp has in its registers: a chunk of its 32 tokens, with the token's own row put in its place. Where
// heads aren't WIDE they have one chunk.
template <bool WIDE>
struct TokenPages {
    WarpTokens tokens;
    int own;  // which of them is the token itself; -1: none
    int key_chunk, value_chunk;
    KeyChunk keys;
    ValueChunk values;
    LaneScales key_scales, value_scales;

    KESTREL_DEVICE TokenPages(const CodeAttention& args, int kv_head, int32 first, int32 position)
        : tokens(args, kv_head, first, position), key_chunk(0), value_chunk(0) {
        own = position >= first && position < first + WARP_TOKENS ? position - first : -1;
        keys.load<true>(tokens, 0);
        values.load<true>(tokens, 0);
        key_scales.load<true>(tokens);
        value_scales.load<false>(tokens);
    }

    KESTREL_DEVICE void put_own(const TokenShared& shared) {
        if (own < 0) return;
        keys.replace(own, (const uint8*)shared.fresh[0], tokens.width, 0);
        values.replace(own, (const uint8*)shared.fresh[1], tokens.width, 0);
        key_scales.replace(own, shared.fresh_scales[0]);
        value_scales.replace(own, shared.fresh_scales[1]);
    }

    KESTREL_DEVICE void have_keys(int chunk, const TokenShared& shared) {
        if (!WIDE || chunk == key_chunk) return;
        key_chunk = chunk;
        keys.load<true>(tokens, chunk);
        if (own >= 0) keys.replace(own, (const uint8*)shared.fresh[0], tokens.width, chunk);
    }

    KESTREL_DEVICE void have_values(int chunk, const TokenShared& shared) {
        if (!WIDE || chunk == value_chunk) return;
        value_chunk = chunk;
        values.load<true>(tokens, chunk);
        if (own >= 0) values.replace(own, (const uint8*)shared.fresh[1], tokens.width, chunk);
    }
};

// A head that a warp has to prepare: `job` counts `count` queries of the group from `first` on, then keys, then values.
struct HeadJob {
    int head, kept;  // of the row; 0: keys, 1: values, else a query
    const float* weight;

    KESTREL_DEVICE HeadJob(const CodeAttention& args, int kv_head, int first, int count, int job) {
        int kv_heads = args.layout.heads, group = args.query_heads / kv_heads;
        kept = job < count ? -1 : job - count;
        head = kept < 0 ? kv_head * group + first + job : args.query_heads + kept * kv_heads + kv_head;
        weight = args.norm != nullptr && kept < 1 ? args.norm + (int64)head * args.layout.width : nullptr;
    }
};

// What the block's heads need and was there before.
KESTREL_DEVICE void fetch_numbers(const CodeAttention& args, TokenShared& shared, int kv_head, int count, int32 position) {
    Rotation rotation(args.cosines, args.sines, args.rotated, position);
    for (int i = threadIdx.x; i < rotation.half; i += ATTEND_THREADS) {
        shared.cosines[i] = rotation.cosines[i];
        shared.sines[i] = rotation.sines[i];
    }
    HeadJob job(args, kv_head, 0, count, warp_index());
    if (job.kept > 0 || job.weight == nullptr) return;
    float* weights = shared.scratch.heads[warp_index()].weights;
    for (int i = lane_index(); i < args.layout.width; i += WARP) weights[i] = job.weight[i];
}

// Queries `first` and after of the group, as pairs of bytes; with `keeps`, also the token's keys and values, into their
// page and for this block.
KESTREL_DEVICE void prepare_heads(
    const CodeAttention& args, TokenShared& shared, int kv_head, int first, int count, bool keeps, int32 position
) {
    int width = args.layout.width, kv_heads = args.layout.heads;
    HeadScratch& scratch = shared.scratch.heads[warp_index()];
    float* values = scratch.values;
    for (int number = warp_index(); number < count + (keeps ? 2 : 0); number += SPLIT_WARPS) {
        HeadJob job(args, kv_head, first, count, number);
        const float* weight = job.weight;
        if (weight != nullptr && first == 0 && number < SPLIT_WARPS) weight = scratch.weights;
        Rotation rotation(shared.cosines, shared.sines, job.kept == 1 ? 0 : args.rotated, 0);
        prepare_head(values, args.qkv + (int64)job.head * width, width, weight, args.eps, rotation);
        if (job.kept < 0) {
            uint4* queries = shared.queries[0];
            float scale = store_query(values, width, number, queries, false, queries, true);
            if (lane_index() == 0) shared.query_scales[number] = scale * (args.scale * LOG2_E);
        } else {
            PageRows<true> rows(args.step, args.layout, position);
            int row_head = job.kept * kv_heads + kv_head;
            int8 *row = (int8*)rows.row(row_head, position), *fresh = (int8*)shared.fresh[job.kept];
            float scale = row_codes(values, width, [row, fresh](int i, int8 code) { row[i] = fresh[i] = code; });
            if (lane_index() == 0) *rows.scale(row_head, position) = shared.fresh_scales[job.kept] = scale;
        }
        __syncwarp();
    }
}

// Scores of the lane's head (lane / 4 of the set) and tokens.
template <bool WIDE>
KESTREL_DEVICE void token_scores(TokenPages<WIDE>& pages, const TokenShared& shared, LaneRow& scores) {
    int tiles = num_feature_tiles(pages.tokens.width);
    int32 sums[4][4] = {};
    for (int chunk = 0; WIDE ? chunk * CHUNK_TILES < tiles : chunk < 1; ++chunk) {
        pages.have_keys(chunk, shared);
#pragma unroll
        for (int tile = 0; tile < CHUNK_TILES; ++tile) {
            if (chunk * CHUNK_TILES + tile >= tiles) continue;
            const uint4& queries = shared.queries[chunk * CHUNK_TILES + tile][lane_index()];
            for (int j = 0; j < 4; ++j) {
                uint32 b[2];
                pages.keys.tile(tile, j, b);
                multiply(sums[j], queries, b);
            }
        }
    }
    float query_scale = shared.query_scales[lane_index() / 4];
    for (int index = 0; index < LANE_TOKENS; ++index) {
        const int32(&sum)[4] = sums[index / 2];
        int32 pairs = pair_sum(sum[index % 2], sum[2 + index % 2]);
        scores.of[index] = (float)pairs * query_scale * pages.key_scales.of[index];
    }
}

// Sums over the warp's tokens, of the lane's head and features 32 q and after of the chunk, for other warps to add.
KESTREL_DEVICE void share_sums(TokenShared& shared, const ValueChunk& values, const uint4& weights, bool wanted) {
    int lane = lane_index();
    for (int four = 0; four < 4; ++four) {
        uint32 words[2][4];
        values.tiles(four, words);
        int32 sums[2][4];
        for (int t = 0; t < 4; ++t) {
            int32 c[4] = {};
            uint32 b[2] = {words[0][t], words[1][t]};
            multiply(c, weights, b);
            sums[0][t] = pair_sum(c[0], c[2]);
            sums[1][t] = pair_sum(c[1], c[3]);
        }
        for (int half = 0; half < 2; ++half) {  // each lane in other banks
            int4 word = make_int4(sums[half][0], sums[half][1], sums[half][2], sums[half][3]);
            if (wanted) shared.scratch.sums[warp_index()][lane][(4 * half + four) ^ lane % 8] = word;
        }
    }
}

// The split's sums of the chunk for `count` heads from `head` on, over all warps, into the partials.
KESTREL_DEVICE void keep_sums(const CodeAttention& args, const TokenShared& shared, int head, int count, int chunk) {
    int width = args.layout.width;
    __syncthreads();
    for (int job = threadIdx.x; job < count * (CHUNK / 4); job += ATTEND_THREADS) {
        int row = job / (CHUNK / 4), four = job % (CHUNK / 4), from = 4 * row + four / 8;
        int feature = CHUNK * chunk + 4 * four;
        if (feature >= width) continue;
        int4 total = make_int4(0, 0, 0, 0);
        for (int warp = 0; warp < SPLIT_WARPS; ++warp) {
            int4 more = shared.scratch.sums[warp][from][four % 8 ^ from % 8];
            total.x += more.x, total.y += more.y, total.z += more.z, total.w += more.w;
        }
        float scale = pair_scale(shared.parts.heaviest_of(row));
        float4 sum = make_float4(total.x * scale, total.y * scale, total.z * scale, total.w * scale);
        int64 partial = (int64)(head + row) * gridDim.x + blockIdx.x;
        *(float4*)(args.partials + partial * width + feature) = sum;
    }
    __syncthreads();
}

KESTREL_DEVICE float* split_numbers(const CodeAttention& args) {
    return args.partials + (int64)args.query_heads * gridDim.x * args.layout.width;
}

// Up to 8 heads of the group, from `first` on, over the block's split.
template <bool WIDE>
KESTREL_DEVICE void attend_heads(
    const CodeAttention& args, TokenShared& shared, TokenPages<WIDE>& pages, int kv_head, int first, int32 position
) {
    int group = args.query_heads / args.layout.heads, count = min(HEAD_SET, group - first);
    int lane = lane_index(), row = lane / 4, head = kv_head * group + first;
    int32 token = blockIdx.x * SPLIT + WARP_TOKENS * warp_index();
    LaneRow scores;
    token_scores(pages, shared, scores);
    scores.hide(token, oldest_seen(position, args.window), position);
    float largest = scores.largest();
    if (lane % 4 == 0) shared.parts.largest[row][warp_index()] = largest;
    __syncthreads();
    uint32 heaviest;
    float total = scores.weigh(shared.parts.largest_of(row), pages.value_scales, heaviest);
    if (lane % 4 == 0) {
        shared.parts.total[row][warp_index()] = total;
        shared.parts.heaviest[row][warp_index()] = heaviest;
    }
    __syncthreads();
    uint32 high[2], low[2];
    scores.pairs(shared.parts.heaviest_of(row), high, low);
    uint4 weights = make_uint4(high[0], low[0], high[1], low[1]);
    for (int chunk = 0; WIDE ? chunk * CHUNK < args.layout.width : chunk < 1; ++chunk) {
        pages.have_values(chunk, shared);
        share_sums(shared, pages.values, weights, row < count);
        keep_sums(args, shared, head, count, chunk);
    }
    if (threadIdx.x < count) {
        float* numbers = split_numbers(args) + ((int64)(head + threadIdx.x) * gridDim.x + blockIdx.x) * 2;
        numbers[0] = shared.parts.largest_of(threadIdx.x);
        numbers[1] = shared.parts.total_of(threadIdx.x);
    }
}

// All splits of 32 features of a head become one, by one warp; one feature a lane.
KESTREL_DEVICE float join_splits(const CodeAttention& args, int head, int feature, int first, int last) {
    int width = args.layout.width;
    const float* sums = args.partials + (int64)head * gridDim.x * width + feature;
    const float* numbers = split_numbers(args) + (int64)head * gridDim.x * 2;
    float so_far = minus_infinity(), total = 0.0f, value = 0.0f;
    for (int start = first; start <= last; start += WARP) {
        int mine = start + lane_index(), count = min(WARP, last - start + 1);
        float own = mine <= last ? load_written(numbers + 2 * mine) : minus_infinity();
        float own_total = mine <= last ? load_written(numbers + 2 * mine + 1) : 0.0f;
        float largest = fmaxf(so_far, own);  // up to and with this lane's split
        for (int distance = 1; distance < WARP; distance *= 2) {
            float other = __shfl_up_sync(ALL_LANES, largest, distance);
            if (lane_index() >= distance) largest = fmaxf(largest, other);
        }
        float before = __shfl_up_sync(ALL_LANES, largest, 1);
        if (lane_index() == 0) before = so_far;
        Joint joint = joint_of(before, own, largest);
        so_far = __shfl_sync(ALL_LANES, largest, WARP - 1);
        for (int some = 0; some < count; some += READ_AHEAD) {
            float read[READ_AHEAD];
#pragma unroll
            for (int i = 0; i < READ_AHEAD; ++i)
                read[i] = some + i < count ? load_written(sums + (int64)(start + some + i) * width) : 0.0f;
#pragma unroll
            for (int i = 0; i < READ_AHEAD; ++i) {
                if (some + i >= count) continue;
                Joint of_split = {
                    __shfl_sync(ALL_LANES, joint.before, some + i), __shfl_sync(ALL_LANES, joint.added, some + i)
                };
                total = of_split.join(total, __shfl_sync(ALL_LANES, own_total, some + i));
                value = of_split.join(value, read[i]);
            }
        }
    }
    return value / total;
}

template <bool WIDE>
KESTREL_DEVICE void attend_token(const CodeAttention& args) {
    __shared__ TokenShared shared;
    int kv_head = blockIdx.y, width = args.layout.width, group = args.query_heads / args.layout.heads;
    int32 position = (int32)args.step->first, start = blockIdx.x * SPLIT;
    int first = oldest_seen(position, args.window) / SPLIT, last = position / SPLIT;
    if (blockIdx.x < first || blockIdx.x > last) return;
    // Older tokens' rows, page table and position were there before the kernel before this one began.
    TokenPages<WIDE> pages(args, kv_head, start + WARP_TOKENS * warp_index(), position);
    fetch_numbers(args, shared, kv_head, min(HEAD_SET, group), position);
    __syncthreads();
    wait_for_previous();
    let_next_start();
    for (int set = 0; set < group; set += HEAD_SET) {
        bool keeps = set == 0 && blockIdx.x == last;
        prepare_heads(args, shared, kv_head, set, min(HEAD_SET, group - set), keeps, position);
        __syncthreads();
        if (set == 0) pages.put_own(shared);
        attend_heads(args, shared, pages, kv_head, set, position);
    }
    __syncthreads();
    if (first < last) {
        if (threadIdx.x == 0) {
            __threadfence();  // what the block has written is there before its arrival; what others have, behind theirs
            shared.arrived = atomicInc(args.arrivals + kv_head, last - first);
            __threadfence();
        }
        __syncthreads();
        if (shared.arrived != last - first) return;
    }
    int blocks = width / WARP;
    for (int job = warp_index(); job < group * blocks; job += SPLIT_WARPS) {
        int head = kv_head * group + job / blocks, feature = job % blocks * WARP + lane_index();
        float value = join_splits(args, head, feature, first, last);
        store_activation(args.out, 0, head * width + feature, value);
    }
}

KESTREL_KERNEL_SHARING(attend_token_128, ATTEND_THREADS, 2, CodeAttention) { attend_token<false>(args); }
KESTREL_KERNEL(attend_token_512, ATTEND_THREADS, CodeAttention) { attend_token<true>(args); }
