// Attention of one token over 8-bit pages, from the row that the QKV product left to what the output product reads. A
// block has a split (blockIdx.x) and a head of keys and values (blockIdx.y), with all query heads that share it; the
// block that has the token's own split writes its keys and values first. Where there are several splits, the last block
// of a head to arrive puts them together.
//
// What counts is how long one step waits for the other: whatever doesn't depend on the row is asked for before it is
// there, and a warp that has no tokens goes from barrier to barrier.
#include "attention_codes.cuh"

static const int HEAD_SET = 8;  // query heads at once: bytes of theirs and of what is left fill a tile
static const int PAIRS = CHUNK / 2;  // of features

union TokenScratch {
    int4 sums[SPLIT_WARPS][WARP][CHUNK_TILES * 2];  // of each lane, features of its head
    float4 joints[HEAD_SET][WARP];                  // of splits: before, added, sum of weights
};

template <int PIECES>
struct TokenShared {
    uint4 queries[PIECES * CHUNK_TILES][WARP];
    TokenScratch scratch;
    float scales[SPLIT_WARPS][2][WARP];  // of tokens: of keys, of values
    uint4 fresh[2][WIDEST_HEAD / 16];    // the token's own codes: key, value
    float fresh_scales[2];
    float query_scales[HEAD_SET];
    RowParts<HEAD_SET> parts;
    uint32 arrived;
};

// What a block has to do.
struct TokenBlock {
    int kv_head, group, width;
    int32 position, start;    // of the token, and where the split starts
    int first, last;          // splits that the token sees
    int warps;                // that have tokens: as many as these, from the first one on

    KESTREL_DEVICE TokenBlock(const CodeAttention& args)
        : kv_head(blockIdx.y), width(args.layout.width), position((int32)args.step->first), start(blockIdx.x * SPLIT) {
        group = args.query_heads / args.layout.heads;
        first = oldest_seen(position, args.window) / SPLIT;
        last = position / SPLIT;
        warps = min(SPLIT_WARPS, (position - start) / WARP_TOKENS + 1);
    }

    KESTREL_DEVICE bool sees() const { return (int)blockIdx.x >= first && (int)blockIdx.x <= last; }
    KESTREL_DEVICE bool keeps() const { return (int)blockIdx.x == last; }  // the token's own keys and values
    KESTREL_DEVICE bool is_only() const { return first == last; }
    KESTREL_DEVICE bool has_tokens() const { return warp_index() < warps; }
};

// What of pages a warp has in its registers: a chunk of its 32 tokens, with the token's own row put in its place. Where
// heads aren't WIDE they have one chunk.
template <int PIECES>
struct TokenPages {
    WarpTokens tokens;
    int own;  // which of them is the token itself; -1: none
    int key_chunk, value_chunk;
    KeyChunk keys;
    ValueChunk values;
    float key_scale, value_scale;  // of the token that has the lane's number

    KESTREL_DEVICE TokenPages(const CodeAttention& args, const TokenBlock& block)
        : tokens(args, block.kv_head, block.start + WARP_TOKENS * warp_index(), block.position + 1),
          key_chunk(0),
          value_chunk(0) {
        bool is_mine = block.position / WARP_TOKENS == block.start / WARP_TOKENS + warp_index();
        own = is_mine ? block.position % WARP_TOKENS : -1;
        if (is_mine) --tokens.count;  // it isn't there yet
        keys.load<true>(tokens, 0);
        values.load<true>(tokens, 0);
        bool there = lane_index() < tokens.count;
        key_scale = there ? load_global4(tokens.scales<true>(lane_index())) : 0.0f;
        value_scale = there ? load_global4(tokens.scales<false>(lane_index())) : 0.0f;
    }

    KESTREL_DEVICE void share_scales(TokenShared<PIECES>& shared) const {
        shared.scales[warp_index()][0][lane_index()] = key_scale;
        shared.scales[warp_index()][1][lane_index()] = value_scale;
    }

    KESTREL_DEVICE void put_own(const TokenShared<PIECES>& shared) {
        if (own < 0) return;
        keys.replace(own, (const uint8*)shared.fresh[0], tokens.width, 0);
        values.replace(own, (const uint8*)shared.fresh[1], tokens.width, 0);
    }

    // Of the token itself, into its page.
    KESTREL_DEVICE void keep_own(const TokenShared<PIECES>& shared) const {
        if (own < 0) return;
#pragma unroll
        for (int piece = 0; piece < PIECES; ++piece) {
            int feature = PIECE * piece + 4 * lane_index();
            if (feature >= tokens.width) continue;
            *(uint32*)(tokens.key(own) + feature) = *(const uint32*)((const uint8*)shared.fresh[0] + feature);
            *(uint32*)(tokens.value(own) + feature) = *(const uint32*)((const uint8*)shared.fresh[1] + feature);
        }
        if (lane_index() > 0) return;
        *(float*)tokens.template scales<true>(own) = shared.fresh_scales[0];
        *(float*)tokens.template scales<false>(own) = shared.fresh_scales[1];
    }

    // kind: 0: of keys, 1: of values
    KESTREL_DEVICE LaneScales lane_scales(const TokenShared<PIECES>& shared, int kind) const {
        LaneScales scales;
        scales.take(shared.scales[warp_index()][kind]);
        if (own >= 0) scales.replace(own, shared.fresh_scales[kind]);
        return scales;
    }

    KESTREL_DEVICE void have_keys(int chunk, const TokenShared<PIECES>& shared) {
        if (PIECES == 1 || chunk == key_chunk) return;
        key_chunk = chunk;
        keys.load<true>(tokens, chunk);
        if (own >= 0) keys.replace(own, (const uint8*)shared.fresh[0], tokens.width, chunk);
    }

    KESTREL_DEVICE void have_values(int chunk, const TokenShared<PIECES>& shared) {
        if (PIECES == 1 || chunk == value_chunk) return;
        value_chunk = chunk;
        values.load<true>(tokens, chunk);
        if (own >= 0) values.replace(own, (const uint8*)shared.fresh[1], tokens.width, chunk);
    }
};

// A head that a warp has to prepare: `job` counts `count` queries of the group from `first` on, then keys, then values.
struct HeadJob {
    int head, kept;  // of the row; 0: keys, 1: values, else a query

    KESTREL_DEVICE HeadJob(const CodeAttention& args, const TokenBlock& block, int first, int count, int job) {
        kept = job < count ? -1 : job - count;
        head = kept < 0 ? block.kv_head * block.group + first + job
                        : args.query_heads + kept * args.layout.heads + block.kv_head;
    }

    KESTREL_DEVICE const float* row(const CodeAttention& args) const {
        return args.qkv + (int64)head * args.layout.width;
    }

    // Null, where there is none.
    KESTREL_DEVICE const float* weight(const CodeAttention& args) const {
        return args.norm != nullptr && kept != 1 ? args.norm + (int64)head * args.layout.width : nullptr;
    }

    // Values stay as they are.
    template <int PIECES>
    KESTREL_DEVICE void load_factors(
        const CodeAttention& args, const TokenBlock& block, HeadFactors<PIECES>& factors
    ) const {
        if (kept == 1) return;
        Rotation rotation(args.cosines, args.sines, args.rotated, block.position);
        factors.load(weight(args), rotation, block.width);
    }
};

// So that a row (D) is near when it is loaded: nothing becomes of what these loads bring.
KESTREL_DEVICE void ask_for(const float* row, int width) {
    for (int i = 4 * lane_index(); row != nullptr && i < width; i += PIECE) load_global4(row + i);
}

// The row of a head, as the QKV product left it.
template <int PIECES>
struct RawHead {
    HeadRow<PIECES> values, partners;

    KESTREL_DEVICE void load(const CodeAttention& args, const TokenBlock& block, const HeadJob& job) {
        const float* row = job.row(args);
        values.load(row, block.width);
        if (job.kept != 1) partners.load_partners(row, Rotation(args.cosines, args.sines, args.rotated, 0));
    }
};

// Queries `first` and after of the group, as pairs of bytes; with `keeps`, also the token's keys and values. raw,
// factors: of the warp's first head.
template <int PIECES>
KESTREL_DEVICE void prepare_heads(
    const CodeAttention& args, const TokenBlock& block, TokenShared<PIECES>& shared, int first, int count, bool keeps,
    RawHead<PIECES>& raw, HeadFactors<PIECES>& factors
) {
    int jobs = count + (keeps ? 2 : 0);
    for (int number = warp_index(); number < jobs; number += SPLIT_WARPS) {
        HeadJob job(args, block, first, count, number);
        int next = number + SPLIT_WARPS;
        HeadJob next_job(args, block, first, count, next);
        if (next < jobs) ask_for(next_job.row(args), block.width);
        HeadRow<PIECES>& values = raw.values;
        if (job.kept != 1) {
            float factor = args.norm != nullptr ? values.norm_factor(block.width, args.eps) : 1.0f;
            values.change(raw.partners, factors, factor);
        }
        if (job.kept < 0) {
            float scale = store_query(values, block.width, number, shared.queries[0], false, shared.queries[0], true);
            if (lane_index() == 0) shared.query_scales[number] = scale * (args.scale * LOG2_E);
        } else {
            uint8* fresh = (uint8*)shared.fresh[job.kept];
            float scale = values.store_codes(block.width, fresh);
            if (lane_index() == 0) shared.fresh_scales[job.kept] = scale;
        }
        if (next >= jobs) continue;
        raw.load(args, block, next_job);
        next_job.load_factors(args, block, factors);
    }
}

// Scores of the lane's head (lane / 4 of the set) and tokens.
template <int PIECES>
KESTREL_DEVICE void token_scores(TokenPages<PIECES>& pages, const TokenShared<PIECES>& shared, LaneRow& scores) {
    int tiles = num_feature_tiles(pages.tokens.width);
    int32 sums[4][4] = {};
    for (int chunk = 0; PIECES == 1 ? chunk < 1 : chunk * CHUNK_TILES < tiles; ++chunk) {
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
    LaneScales key_scales = pages.lane_scales(shared, 0);
    for (int index = 0; index < LANE_TOKENS; ++index) {
        const int32(&sum)[4] = sums[index / 2];
        int32 pairs = pair_sum(sum[index % 2], sum[2 + index % 2]);
        scores.of[index] = (float)pairs * query_scale * key_scales.of[index];
    }
}

// Sums over the warp's tokens, of the lane's head and features 32 q and after of the chunk, for other warps to add.
template <int PIECES>
KESTREL_DEVICE void share_sums(
    TokenShared<PIECES>& shared, const ValueChunk& values, const uint4& weights, bool wanted
) {
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

KESTREL_DEVICE float* split_numbers(const CodeAttention& args) {
    return args.partials + (int64)args.query_heads * gridDim.x * args.layout.width;
}

// The split's sums of the chunk for `count` heads from `head` on, over all warps: into the partials, or, of a token's
// only split, what the output product reads. Two features a thread.
template <int PIECES>
KESTREL_DEVICE void leave_sums(
    const CodeAttention& args, const TokenBlock& block, const TokenShared<PIECES>& shared, int head, int count,
    int chunk
) {
    for (int job = threadIdx.x; job < count * PAIRS; job += ATTEND_THREADS) {
        int row = job / PAIRS, pair = job % PAIRS, from = 4 * row + pair / 16, four = pair % 16 / 2;
        int feature = CHUNK * chunk + 2 * pair;
        int2 total = make_int2(0, 0);
#pragma unroll
        for (int warp = 0; warp < SPLIT_WARPS; ++warp) {
            if (warp >= block.warps) continue;
            int2 more = ((const int2*)&shared.scratch.sums[warp][from][four ^ from % 8])[pair % 2];
            total.x += more.x, total.y += more.y;
        }
        float scale = pair_scale(shared.parts.heaviest_of(row));
        float2 sum = make_float2((float)total.x * scale, (float)total.y * scale);
        bool there = feature < block.width;
        if (block.is_only()) {
            float part = 1.0f / (0.0f + shared.parts.total_of(row));
            int column = (head + row) * block.width + feature;
            store_two(args.out, 0, column, there, (0.0f + sum.x) * part, (0.0f + sum.y) * part);
        } else if (there) {
            int64 partial = (int64)(head + row) * gridDim.x + blockIdx.x;
            *(float2*)(args.partials + partial * block.width + feature) = sum;
        }
    }
}

// Up to 8 heads of the group, from `first` on, over the block's split.
template <int PIECES>
KESTREL_DEVICE void attend_heads(
    const CodeAttention& args, const TokenBlock& block, TokenShared<PIECES>& shared, TokenPages<PIECES>& pages,
    int first
) {
    int count = min(HEAD_SET, block.group - first), head = block.kv_head * block.group + first;
    int lane = lane_index(), row = lane / 4, warp = warp_index();
    bool has_tokens = block.has_tokens();
    LaneRow scores;
    float largest = minus_infinity(), total = 0.0f;
    uint32 heaviest = 0;
    if (has_tokens) {
        token_scores(pages, shared, scores);
        int32 token = block.start + WARP_TOKENS * warp;
        scores.hide(token, oldest_seen(block.position, args.window), block.position);
        largest = scores.largest();
    }
    if (lane % 4 == 0) shared.parts.put_largest(row, warp, largest);
    __syncthreads();
    if (has_tokens) total = scores.weigh(shared.parts.largest_of(row), pages.lane_scales(shared, 1), heaviest);
    if (lane % 4 == 0) shared.parts.put_weights(row, warp, total, heaviest);
    __syncthreads();
    uint32 high[2], low[2];
    if (has_tokens) scores.pairs(shared.parts.heaviest_of(row), high, low);
    for (int chunk = 0; PIECES == 1 ? chunk < 1 : chunk * CHUNK < block.width; ++chunk) {
        if (chunk > 0) __syncthreads();
        if (has_tokens) {
            pages.have_values(chunk, shared);
            share_sums(shared, pages.values, make_uint4(high[0], low[0], high[1], low[1]), row < count);
        }
        __syncthreads();
        leave_sums(args, block, shared, head, count, chunk);
    }
    if (!block.is_only() && threadIdx.x < count) {
        float2* numbers = (float2*)split_numbers(args) + (int64)(head + threadIdx.x) * gridDim.x + blockIdx.x;
        *numbers = make_float2(shared.parts.largest_of(threadIdx.x), shared.parts.total_of(threadIdx.x));
    }
}

// How 32 splits are put together, one a lane, by one warp. so_far: the largest score before them, then with them.
KESTREL_DEVICE void find_joints(float4 (&joints)[WARP], const float2& numbers, float& so_far) {
    int lane = lane_index();
    float largest = fmaxf(so_far, numbers.x);  // up to and with this lane's split
    for (int distance = 1; distance < WARP; distance *= 2) {
        float other = __shfl_up_sync(ALL_LANES, largest, distance);
        if (lane >= distance) largest = fmaxf(largest, other);
    }
    float before = __shfl_up_sync(ALL_LANES, largest, 1);
    Joint joint = joint_of(lane == 0 ? so_far : before, numbers.x, largest);
    joints[lane] = make_float4(joint.before, joint.added, numbers.y, 0.0f);
    so_far = __shfl_sync(ALL_LANES, largest, WARP - 1);
}

// All splits of up to 8 heads of the group, from `set` on, become one. Two features a thread.
template <int PIECES>
KESTREL_DEVICE void join_splits(
    const CodeAttention& args, const TokenBlock& block, TokenShared<PIECES>& shared, int set
) {
    int count = min(HEAD_SET, block.group - set), first_head = block.kv_head * block.group + set, width = block.width;
    int pairs = width / 2, lane = lane_index(), warp = warp_index();
    const float2* numbers = (const float2*)split_numbers(args) + (int64)(first_head + min(warp, count - 1)) * gridDim.x;
    for (int start = 0; start < count * pairs; start += ATTEND_THREADS) {
        int job = start + threadIdx.x, row = min(job / pairs, count - 1), feature = 2 * (job % pairs);
        bool there = job < count * pairs;
        int column = (first_head + row) * width + feature;
        const float* sums = args.partials + (int64)(first_head + row) * gridDim.x * width + feature;
        float so_far = minus_infinity(), total = 0.0f, first = 0.0f, second = 0.0f;
        for (int split = block.first; split <= block.last; split += WARP) {
            int splits = block.last - split + 1;
            float2 own = make_float2(minus_infinity(), 0.0f), read[WARP];
            if (lane < splits) own = load_written8(numbers + split + lane);
#pragma unroll
            for (int i = 0; i < WARP; ++i) {
                read[i] = make_float2(0.0f, 0.0f);
                if (i < splits && there) read[i] = load_written8(sums + (int64)(split + i) * width);
            }
            __syncthreads();  // what was there before is not needed any more
            if (warp < count) find_joints(shared.scratch.joints[warp], own, so_far);
            __syncthreads();
#pragma unroll
            for (int i = 0; i < WARP; ++i) {
                if (i >= splits) continue;
                float4 found = shared.scratch.joints[row][i];
                Joint joint = {found.x, found.y};
                total = joint.join(total, found.z);
                first = joint.join(first, read[i].x);
                second = joint.join(second, read[i].y);
            }
        }
        float part = 1.0f / total;
        store_two(args.out, 0, column, there, first * part, second * part);
    }
}

// Whether all other blocks of the head have left their splits. Behind it they can be read.
template <int PIECES>
KESTREL_DEVICE bool is_last_to_arrive(const CodeAttention& args, const TokenBlock& block, TokenShared<PIECES>& shared) {
    uint32 others = block.last - block.first;
    __syncthreads();
    if (threadIdx.x == 0) shared.arrived = count_arrival(args.arrivals + block.kv_head, others);
    __syncthreads();
    return shared.arrived == others;
}

template <int PIECES>
KESTREL_DEVICE void attend_token(const CodeAttention& args) {
    __shared__ TokenShared<PIECES> shared;
    TokenBlock block(args);
    if (!block.sees()) return;
    // Older tokens' rows, page table and position were there before the kernel before this one began.
    TokenPages<PIECES> pages(args, block);
    int count = min(HEAD_SET, block.group), jobs = count + (block.keeps() ? 2 : 0), number = warp_index();
    int next = number + SPLIT_WARPS;
    HeadJob job(args, block, 0, count, number);
    HeadFactors<PIECES> factors;
    RawHead<PIECES> raw;
    if (next < jobs) ask_for(HeadJob(args, block, 0, count, next).weight(args), block.width);
    if (number < jobs) job.load_factors(args, block, factors);
    wait_for_previous();
    if (number < jobs) raw.load(args, block, job);
    let_next_start();
    for (int set = 0; true;) {
        prepare_heads(args, block, shared, set, count, set == 0 && block.keeps(), raw, factors);
        pages.share_scales(shared);
        __syncthreads();
        pages.put_own(shared);
        if (set == 0) pages.keep_own(shared);
        attend_heads(args, block, shared, pages, set);
        set += HEAD_SET;
        if (PIECES == 1 || set >= block.group) break;
        // Rather once more than in registers all the time: so large a group is rare.
        pages = TokenPages<PIECES>(args, block);
        count = min(HEAD_SET, block.group - set);
        job = HeadJob(args, block, set, count, number);
        __syncthreads();
        if (number >= count) continue;
        raw.load(args, block, job);
        job.load_factors(args, block, factors);
    }
    if (block.is_only() || !is_last_to_arrive(args, block, shared)) return;
    for (int set = 0; PIECES == 1 ? set < 1 : set < block.group; set += HEAD_SET) join_splits(args, block, shared, set);
}

// Of heads up to 128 wide of which up to 8 share keys and values; and of any.
KESTREL_KERNEL_SHARING(attend_token_128, ATTEND_THREADS, 2, CodeAttention) { attend_token<1>(args); }
KESTREL_KERNEL(attend_token_512, ATTEND_THREADS, CodeAttention) { attend_token<WIDEST_HEAD / PIECE>(args); }
