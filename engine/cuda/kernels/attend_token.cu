// Attention of one token over 8-bit pages, from the row that the QKV product left to what the output product reads. A
// block has a head of keys and values (blockIdx.x), with all query heads that share it, and a split; the block that has
// the token's own split writes its keys and values first. Blocks begin in the order of their numbers: those of that
// split first, and those last for which there is no split yet. Where there are several splits, the last blocks of a head
// to arrive put them together: see join_token.cuh.
//
// What counts is how long one step waits for the other: whatever doesn't depend on the row is asked for before it is
// there, and a warp that has no tokens goes from barrier to barrier.
#include "join_token.cuh"

template <int PIECES>
struct TokenShared {
    uint4 queries[PIECES * CHUNK_TILES][WARP];
    int4 sums[SPLIT_WARPS][WARP][CHUNK_TILES * 2];  // of each lane, features of its head
    float scales[SPLIT_WARPS][2][WARP];  // of tokens: of keys, of values
    uint4 fresh[2][WIDEST_HEAD / 16];    // the token's own codes: key, value
    float fresh_scales[2];
    float query_scales[HEAD_SET];
    RowParts<HEAD_SET> parts;
};

template <int PIECES>
union BlockShared {
    TokenShared<PIECES> token;
    JoinShared join;
};

// Which page of the table has a warp's tokens of a split.
KESTREL_DEVICE int warp_page(int split) { return (split * SPLIT + WARP_TOKENS * warp_index()) / PAGE; }

// What of pages a warp has in its registers: a chunk of its 32 tokens, with the token's own row put in its place. Where
// heads aren't WIDE they have one chunk.
template <int PIECES>
struct TokenPages {
    WarpTokens tokens;
    int own;  // which of them is the token itself; -1: none
    int key_chunk, value_chunk;
    KeyChunk keys;
    ValueChunk values;

    KESTREL_DEVICE TokenPages(const CodeAttention& args, const TokenBlock& block, const uint8* page)
        : tokens(args, block.kv_head, block.start + WARP_TOKENS * warp_index(), block.position + 1, page),
          key_chunk(0),
          value_chunk(0) {
        bool is_mine = block.position / WARP_TOKENS == block.start / WARP_TOKENS + warp_index();
        own = is_mine ? block.position % WARP_TOKENS : -1;
        if (is_mine) --tokens.count;  // it isn't there yet
        keys.load<true>(tokens, 0);
        values.load<true>(tokens, 0);
    }

    // Scales of all 32 tokens into shared memory, also of those that aren't there: nothing comes of them.
    KESTREL_DEVICE void ask_for_scales(TokenShared<PIECES>& shared) const {
        int kind = lane_index() / 8, token = lane_index() % 8 * 4;
        if (tokens.layer == nullptr || kind > 1) return;
        const float* keys_from = tokens.template scales<true>(token);
        copy_async16(&shared.scales[warp_index()][kind][token], keys_from + kind * tokens.kv_heads * PAGE);
    }

    KESTREL_DEVICE void put_own(TokenShared<PIECES>& shared) {
        if (own < 0) return;
        int kind = lane_index();
        keys.replace(own, shared_place(shared.fresh[0]), tokens.width, 0);
        values.replace(own, shared_place(shared.fresh[1]), tokens.width, 0);
        if (kind < 2) shared.scales[warp_index()][kind][own] = shared.fresh_scales[kind];
        __syncwarp();
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
        return scales;
    }

    KESTREL_DEVICE void have_keys(int chunk, TokenShared<PIECES>& shared) {
        if (PIECES == 1 || chunk == key_chunk) return;
        key_chunk = chunk;
        keys.load<true>(tokens, chunk);
        if (own >= 0) keys.replace(own, shared_place(shared.fresh[0]), tokens.width, chunk);
    }

    KESTREL_DEVICE void have_values(int chunk, TokenShared<PIECES>& shared) {
        if (PIECES == 1 || chunk == value_chunk) return;
        value_chunk = chunk;
        values.load<true>(tokens, chunk);
        if (own >= 0) values.replace(own, shared_place(shared.fresh[1]), tokens.width, chunk);
    }
};

// A head to be prepared by LANES lanes: `number` counts `count` queries of the group from `first` on, then keys and
// values. Half warps whose other half has a query have one too: the last one again, for a row that nobody asks for.
template <int LANES>
struct HeadJob {
    int head, kept;  // of the row; 0: keys, 1: values, else a query

    KESTREL_DEVICE HeadJob(const CodeAttention& args, const TokenBlock& block, int first, int count, int number) {
        kept = number - first_kept(count);
        head = kept < 0 ? block.kv_head * block.group + first + min(number, count - 1)
                        : args.query_heads + kept * args.layout.heads + block.kv_head;
    }

    static KESTREL_DEVICE int first_kept(int count) { return LANES == WARP ? count : (count + 1) / 2 * 2; }
};

// One of the heads, a query as pairs of bytes. waits: for the row. Warps come here as a whole.
template <int PIECES, int LANES, typename Shared>
KESTREL_DEVICE void prepare_head(
    const CodeAttention& args, const TokenBlock& block, Shared& shared, const HeadJob<LANES>& job, int number,
    bool waits
) {
    bool turns = job.kept != 1;  // values stay as they are
    int64 at = (int64)job.head * block.width;
    const float* weight = args.norm != nullptr && turns ? args.norm + at : nullptr;
    Rotation rotation(args.cosines, args.sines, turns ? args.rotated : 0, block.position);
    HeadFactors<PIECES, LANES> factors;
    factors.template load<true>(weight, rotation, block.width);
    HeadRow<PIECES, LANES> values, partners;
    if (waits) wait_for_previous();
    values.load(args.qkv + at, block.width);
    partners.template load_partners<true>(args.qkv + at, rotation);
    if (waits && block.is_only() && !args.lets_early) let_next_start();
    float factor = args.norm != nullptr ? values.norm_factor(block.width, args.eps) : 1.0f;
    values.change(partners, factors, turns ? factor : 1.0f);
    bool leads = lane_index() % LANES == 0;
    if (job.kept < 0) {
        float scale = store_query(values, block.width, number, shared.queries[0], false, shared.queries[0], true);
        if (leads) shared.query_scales[number] = scale * (args.scale * LOG2_E);
    } else {
        float scale = values.store_codes(block.width, (uint8*)shared.fresh[job.kept]);
        if (leads) shared.fresh_scales[job.kept] = scale;
    }
}

// Queries `first` and after of the group, and, where the block keeps them, the token's keys and values with the first
// ones, which wait for the row.
template <int PIECES, int LANES, typename Shared>
KESTREL_DEVICE void prepare_heads(
    const CodeAttention& args, const TokenBlock& block, Shared& shared, int first, int count
) {
    bool waits = first == 0;
    int jobs = HeadJob<LANES>::first_kept(count) + (waits && block.keeps() ? 2 : 0);
#pragma unroll 1
    for (int number = threadIdx.x / LANES; number < jobs; number += ATTEND_THREADS / LANES) {
        HeadJob<LANES> job(args, block, first, count, number);
        prepare_head<PIECES>(args, block, shared, job, number, waits);
        if (PIECES * LANES == WARP) return;  // lanes were chosen so that one round is enough
        waits = false;
    }
    if (waits) wait_for_previous();
    if (waits && block.is_only() && !args.lets_early) let_next_start();
}

// Scores of the lane's head (lane / 4 of the set) and tokens.
template <int PIECES>
KESTREL_DEVICE void token_scores(TokenPages<PIECES>& pages, TokenShared<PIECES>& shared, LaneRow& scores) {
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
            if (wanted) shared.sums[warp_index()][lane][(4 * half + four) ^ lane % 8] = word;
        }
    }
}

// The split's sums of the chunk for `count` heads from `head` on, over all warps: into the partials, or, of a token's
// only split, what the output product reads. A head a warp.
template <int PIECES>
KESTREL_DEVICE void leave_sums(
    const CodeAttention& args, const TokenBlock& block, const TokenShared<PIECES>& shared, int head, int count,
    int chunk
) {
    int row = warp_index(), lane = lane_index(), from = 4 * row + lane / 8, at = lane % 8 ^ from % 8;
    int feature = CHUNK * chunk + 4 * lane;
    if (row >= count) return;
    int4 total = shared.sums[0][from][at];
    if (block.warps > 1) {
#pragma unroll
        for (int warp = 1; warp < SPLIT_WARPS; ++warp) {
            if (warp >= block.warps) continue;
            int4 more = shared.sums[warp][from][at];
            total.x += more.x, total.y += more.y, total.z += more.z, total.w += more.w;
        }
    }
    float scale = pair_scale(shared.parts.heaviest_of(row));
    float sums[4] = {(float)total.x * scale, (float)total.y * scale, (float)total.z * scale, (float)total.w * scale};
    bool there = feature < block.width;
    if (block.is_only()) {
        float part = 1.0f / shared.parts.total_of(row);
        for (int i = 0; i < 4; ++i) sums[i] *= part;
        store_four(args.out, 0, (head + row) * block.width + feature, there, sums);
    } else if (there) {
        int32 partial = (head + row) * gridDim.y + block.split;
        float* to = args.partials + (int64)partial * block.width + feature;
        *(float4*)to = make_float4(sums[0], sums[1], sums[2], sums[3]);
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
        int32 partial = (head + threadIdx.x) * gridDim.y + block.split;
        float2* numbers = (float2*)split_numbers(args) + partial;
        *numbers = make_float2(shared.parts.largest_of(threadIdx.x), shared.parts.total_of(threadIdx.x));
    }
}

template <int PIECES>
KESTREL_DEVICE void attend_token(const CodeAttention& args) {
    __shared__ BlockShared<PIECES> memory;
    TokenShared<PIECES>& shared = memory.token;
    if (args.lets_early) let_next_start();
    // Older tokens' rows, page table and position were there before the kernel before this one began. The table has room
    // for all splits of the launch.
    const uint8* const* table = args.step->pages();
    const uint8* page = (const uint8*)load_global_address(table + warp_page(TokenBlock::earlier_split(args)));
    TokenBlock block(args);
    if (!block.sees()) return;
    if (block.keeps() && block.split > 0) page = (const uint8*)load_global_address(table + warp_page(block.split));
    TokenPages<PIECES> pages(args, block, page);
    pages.ask_for_scales(shared);
    commit_copies();
    for (int set = 0; true;) {
        int count = min(HEAD_SET, block.group - set);
        if (PIECES == 1 && count + (block.keeps() ? 2 : 0) > SPLIT_WARPS)
            prepare_heads<2, WARP / 2>(args, block, shared, set, count);
        else
            prepare_heads<PIECES, WARP>(args, block, shared, set, count);
        wait_copies<0>();
        __syncthreads();
        pages.put_own(shared);
        attend_heads(args, block, shared, pages, set);
        set += HEAD_SET;
        if (PIECES == 1 || set >= block.group) break;
        // Rather once more than in registers all the time: so large a group is rare.
        pages = TokenPages<PIECES>(args, block, page);
        __syncthreads();
    }
    pages.keep_own(shared);
    if (block.is_only()) return;
    // Before this, blocks of the output product would find room where splits have ended, and on no other processor: two
    // on some, none on others, unless each is to have one. The join takes longer than they take to begin.
    __syncthreads();
    if (!args.lets_early) let_next_start();
    join_at_last<PIECES>(args, block, memory.join);
}

// Of heads up to 128 wide of which up to 8 share keys and values; and of any.
KESTREL_KERNEL_SHARING(attend_token_128, ATTEND_THREADS, 2, CodeAttention) { attend_token<1>(args); }
KESTREL_KERNEL(attend_token_512, ATTEND_THREADS, CodeAttention) { attend_token<WIDEST_HEAD / PIECE>(args); }
