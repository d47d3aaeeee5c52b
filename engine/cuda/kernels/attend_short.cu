// Attention of a few tokens of one sequence over 8-bit pages, where their own keys and values are already, behind so many
// others that it would take long to go through the splits one after the other. A pair is 32 rows, as `attend_rows` has
// them, and a head of keys and values. There are two launches: in the first one each block has some splits of a pair, or
// of the next ones too; the second one puts the splits of each pair together in their order. Each number comes about as
// it does in `attend_rows`, and so to the same bits.
#include "attend_rows.cuh"

static const int JOIN_THREADS = 128;
static const int JOIN_ROWS = 8;     // of a block: half a tile's
static const int JOIN_SPLITS = 8;   // on their way at once
static const int PART_FOURS = JOIN_ROWS * CHUNK / 4;

struct ShortAttention {
    CodeAttention all;  // its partials: see Partials
    int32 tiles;        // of rows
    int32 first_pair;   // of this launch: with the tile pair % tiles, and the head of keys and values pair / tiles
    int32 pairs;        // of this launch
    int32 splits;       // room for so many of a pair, from the first one on that its rows see
};

// What a pair is, and which splits its rows see.
struct Pair {
    int number, kv_head;
    RowTile rows;
    int32 base, end;    // positions: of the step's first token, and behind the pair's last one
    int32 first_split;

    KESTREL_DEVICE Pair(const ShortAttention& args, int number)
        : number(number),
          kv_head((args.first_pair + number) / args.tiles),
          rows(args.all, (args.first_pair + number) % args.tiles),
          base((int32)args.all.step->first) {
        end = base + rows.last_token() + 1;
        first_split = oldest_seen(base + rows.first_token(), args.all.window) / SPLIT;
    }
};

// Of a launch: for each pair, split, chunk and eight rows [lane's features, first or second 16][four of them][lane] four
// sums, see PairSums; behind them all, for each pair, split and row the largest score and the sum of weights.
struct Partials {
    float* all;
    int pairs, splits, chunks;

    KESTREL_DEVICE Partials(const ShortAttention& args, int chunks)
        : all(args.all.partials), pairs(args.pairs), splits(args.splits), chunks(chunks) {}

    // job: of a pair and a split, see SplitJob
    KESTREL_DEVICE float4* sums(int job, int chunk, int eight) const {
        int64 part = ((int64)job * chunks + chunk) * (BLOCK_ROWS / JOIN_ROWS) + eight;
        return (float4*)all + part * PART_FOURS;
    }
    KESTREL_DEVICE float2* numbers(int job, int row) const {
        return (float2*)(all + (int64)pairs * splits * chunks * BLOCK_ROWS * CHUNK) + (int64)job * BLOCK_ROWS + row;
    }
    static KESTREL_DEVICE int four(int half, int index, int lane) { return (4 * half + index) * WARP + lane; }
};

// A pair's split.
struct SplitJob {
    Pair pair;
    int number;
    int32 start;
    WarpTokens tokens;

    KESTREL_DEVICE SplitJob(const ShortAttention& args, int number)
        : pair(args, number / args.splits),
          number(number),
          start((pair.first_split + number % args.splits) * SPLIT),
          tokens(args.all, pair.kv_head, start + WARP_TOKENS * warp_index(), pair.end) {}

    KESTREL_DEVICE bool has_tokens() const { return start < pair.end; }
    // Rows of its tokens were there before the kernel before this one began.
    KESTREL_DEVICE bool is_old() const { return start + SPLIT <= pair.base; }
};

// So that a warp's rows are near when they are loaded.
KESTREL_DEVICE void ask_for(const WarpTokens& tokens) {
    int token = lane_index();
    if (token >= tokens.count) return;
#pragma unroll 1
    for (int feature = 0; feature < tokens.width; feature += CHUNK) {
        prefetch_line(tokens.key(token) + feature);
        prefetch_line(tokens.value(token) + feature);
    }
    if (token < 2) prefetch_line(token == 0 ? tokens.scales<true>(0) : tokens.scales<false>(0));
}

KESTREL_DEVICE void leave_sums(
    const RowsShared& shared, const Partials& partials, int job, int chunk, int width, int tiles
) {
    PairSums found(shared, tiles);
    int tile = warp_index() / 4, lane = lane_index();
    for (int upper = 0; upper < 2; ++upper) {
        float scale = pair_scale(shared.parts.heaviest_of(TILE_ROWS * tile + 8 * upper + lane / 4));
        float4* to = partials.sums(job, chunk, 2 * tile + upper);
        for (int half = 0; half < 2; ++half) {
            int i = 2 * upper + half;
            float4 sums = make_float4(
                found.of(0, i, scale), found.of(1, i, scale), found.of(2, i, scale), found.of(3, i, scale)
            );
            if (CHUNK * chunk + lane % 4 * WARP < width) to[Partials::four(half, warp_index() % 4, lane)] = sums;
        }
    }
}

template <int CHUNKS>
KESTREL_DEVICE void leave_split(const ShortAttention& args, RowsShared& shared, const SplitJob& job) {
    Partials partials(args, CHUNKS);
#pragma unroll 1
    for (int chunk = 0; chunk < CHUNKS; ++chunk) {
        if (CHUNKS > 1 && chunk > 0) change_values(job.tokens, chunk, shared);
        int tiles = token_tiles(job.start, job.pair.end);
        leave_sums(shared, partials, job.number, chunk, job.tokens.width, tiles);
    }
    if (threadIdx.x < BLOCK_ROWS) {
        float largest = shared.parts.largest_of(threadIdx.x), total = shared.parts.total_of(threadIdx.x);
        *partials.numbers(job.number, threadIdx.x) = make_float2(largest, total);
    }
}

template <int CHUNKS>
KESTREL_DEVICE void attend_short(const ShortAttention& args) {
    RowsShared& shared = *(RowsShared*)dynamic_shared();
    int jobs = args.pairs * args.splits;
    int number = jobs * blockIdx.x / gridDim.x, end = jobs * (blockIdx.x + 1) / gridDim.x;
    SplitJob first(args, number);
    if (first.is_old()) ask_for(first.tokens);
    wait_for_previous();
    let_next_start();
    int of_pair = -1;  // the queries that are there
#pragma unroll 1
    for (; number < end; ++number) {
        SplitJob job(args, number);
        if (!job.has_tokens()) continue;
        __syncthreads();  // what the split before has left is not needed any more
        if (of_pair != job.pair.number) {
            load_queries<CHUNKS, CHUNKS == 1 ? 2 : 1>(args.all, shared, job.pair.rows, job.pair.kv_head);
            find_positions(shared, job.pair.rows, job.pair.base);
            of_pair = job.pair.number;
            __syncthreads();
        }
        KeyChunk keys;
        keys.load<false>(job.tokens, 0);
        LaneScales scales;
        scales.load<true>(job.tokens);
        LaneRow scores[2][2];
        score_split<CHUNKS>(args.all, job.tokens, job.start, job.pair.end, keys, scales, shared, scores);
        __syncthreads();
        weigh_split(shared, scores, scales);
        if (number + 1 < end) ask_for(SplitJob(args, number + 1).tokens);
        __syncthreads();
        leave_split<CHUNKS>(args, shared, job);
    }
}

// Sums of one row's eight neighbours, over the splits so far.
struct JoinedEight {
    float values[8] = {};
    float total = 0.0f, so_far = minus_infinity();

    KESTREL_DEVICE void add(const float2& numbers, const float4 (&sums)[2]) {
        float largest = fmaxf(so_far, numbers.x);
        Joint joint = joint_of(so_far, numbers.x, largest);
        so_far = largest;
        total = joint.join(total, numbers.y);
        for (int i = 0; i < 2; ++i) {
            float four[4];
            unpack(sums[i], four);
            for (int j = 0; j < 4; ++j) values[4 * i + j] = joint.join(values[4 * i + j], four[j]);
        }
    }
};

// Eight rows (blockIdx.y) of a pair, and a chunk (blockIdx.z). Four lanes next to each other have 32 features of a row.
KESTREL_KERNEL(join_short, JOIN_THREADS, ShortAttention) {
    wait_for_previous();
    let_next_start();
    Pair pair(args, blockIdx.x);
    int part = lane_index() % 4, lane = WARP / 4 * warp_index() + lane_index() / 4;  // that had these sums
    int row = JOIN_ROWS * blockIdx.y + lane / 4, chunk = blockIdx.z, width = args.all.layout.width;
    int feature = CHUNK * chunk + lane % 4 * WARP + 8 * part;
    bool there = pair.rows.has(row) && feature < width;
    int token = pair.rows.token(row), job = 0, end = 0;
    if (there) {
        int32 position = pair.base + token;
        int first = pair.number * args.splits - pair.first_split;
        job = first + oldest_seen(position, args.all.window) / SPLIT;
        end = first + position / SPLIT + 1;
    }
    Partials partials(args, gridDim.z);
    JoinedEight joined;
#pragma unroll 1
    for (; job < end; job += JOIN_SPLITS) {
        float2 numbers[JOIN_SPLITS];
        float4 sums[JOIN_SPLITS][2];
        for (int i = 0; i < JOIN_SPLITS; ++i) {
            if (job + i >= end) continue;
            numbers[i] = *partials.numbers(job + i, row);
            const float4* from = partials.sums(job + i, chunk, blockIdx.y);
            for (int four = 0; four < 2; ++four)
                sums[i][four] = from[Partials::four(part / 2, part % 2 * 2 + four, lane)];
        }
        for (int i = 0; i < JOIN_SPLITS; ++i)
            if (job + i < end) joined.add(numbers[i], sums[i]);
    }
    float share = 1.0f / joined.total;
    for (int i = 0; i < 8; ++i) joined.values[i] = there ? joined.values[i] * share : 0.0f;
    int head = pair.kv_head * pair.rows.group + pair.rows.head(row);
    store_eight(args.all.out, token, there ? head * width + feature : args.all.out.width, joined.values);
}

KESTREL_KERNEL_SHARING(attend_short_128, ATTEND_THREADS, ROOMY ? 2 : 1, ShortAttention) { attend_short<1>(args); }
KESTREL_KERNEL(attend_short_256, ATTEND_THREADS, ShortAttention) { attend_short<2>(args); }
KESTREL_KERNEL_SHARING(attend_short_512, ATTEND_THREADS, 1, ShortAttention) { attend_short<4>(args); }
