// What products of a few rows with tiles of codes have in common: their arguments, rows on their way into shared memory,
// and how much of that each of a warp's stages takes.
#pragma once

#include "activation.cuh"
#include "tiles.cuh"

static const int FEW_THREADS = 512;  // such that blocks of two launches fit on a processor: the next one's can wait there
static const int FEW_WARPS = FEW_THREADS / WARP;
static const int FEW_ROUNDS = 2;     // whose sums there is room for: so far some warps may be ahead of others
static const int MOST_TAKEN = 64;    // experts

// Where rows come from. Either they are in 8 bits already, or they are numbers, with a norm or without.
struct FewRows {
    Activation codes;     // their codes; null where there are none yet
    const float* values;  // (T, K) where there are none
    const float* norm;    // (K,), or null
    float eps;
    int32 padding;
};

struct ProductFew {
    Tiles weights;         // of all experts
    const float* bias;     // (N,) or null
    FewRows x;
    float* y;              // (T, stride): set, or added to
    Activation gated;      // (T, N / 2): where products are gates with their ups, what comes of these
    const int32* experts;  // (T, k), which matrices each row takes; null: there is one, or each block chooses
    const float* logits;   // (E,) of a single token's router, from which it does; or null
    int64 stride;          // of y
    int32 tokens;          // T, at most 4; with experts 1, and each has blocks of its own
    int32 taken;           // k; 1 where there are no experts. Row k t + i of y is of row t and its expert i
    int32 jobs_each;       // of one matrix: how many times the tiles that a group makes at a time
    int32 adds;
    int32 experts_known;   // since before the launch before this one
    int32 by_chains;       // 256 / chains, rounded up
    uint32 by_jobs;        // 2^32 / jobs_each, rounded up; 0: jobs_each is 1
    // The next four for product_one.cu alone.
    int32 lets_early;      // the next launch may begin before this one's row is there; see `let_next_start`
    int32 teams_shift;     // of a group there are 1, 2 or 4 teams of warps: its logarithm
    int32 late_stages;     // of each warp's ring: asked for when a row is that stands before a norm, not before; else 0
    int32 near_stages;     // behind each warp's ring: brought near meanwhile, as far as they are of the same tile
    int32 num_experts;     // E where each block chooses: a single list of route.cuh
    int32 num_chosen;      // of them, for all rows of y
};

// Weights on their way: each warp has a ring of stages. Lanes ask for what lies side by side in memory, and find what is
// theirs somewhere else.
template <int BITS>
struct Ring {
    static const int CODE_BYTES = 4 * BlockWords<BITS>::PIECES / 2 * UNIT_BYTES;
    static const int SCALE_BYTES = STRETCHES * TILE * 2;
    static const int STAGE_BYTES = CODE_BYTES + SCALE_BYTES;
    static const int COUNT = (ROOMY ? 16 : 8) / BITS;
    static const int BYTES = FEW_WARPS * COUNT * STAGE_BYTES;
};

// Rows in shared memory, up to whole chains of blocks. Planes lie in different banks.
template <int PLANES>
struct SharedRows {
    uint8* codes;   // (T, planes, blocks, 32), each block as in an Activation
    float* scales;  // (T, blocks)
    float* sums;    // (T, blocks)
    int blocks, tokens, stride;

    KESTREL_DEVICE SharedRows(unsigned char* memory, const Tiles& weights, int num_tokens) {
        blocks = weights.num_stages() * STRETCHES;
        stride = (blocks / 4 * 4 + 5) * WARP;  // one block more than a multiple of 128 bytes
        tokens = num_tokens;
        codes = memory;
        scales = (float*)(codes + tokens * PLANES * stride);
        sums = scales + tokens * blocks;
    }

    KESTREL_DEVICE uint8* plane(int token, int index) const { return codes + (token * PLANES + index) * stride; }
    KESTREL_DEVICE float* end() const { return sums + tokens * blocks; }
};

// One row of codes, of a multiple of 128, as they are, by copies that are under way when this returns.
template <int PLANES>
KESTREL_DEVICE void copy_codes(const Activation& x, int64 row, const SharedRows<PLANES>& to) {
    int pieces = x.width / 16;
    SharedPlace high = shared_place(to.plane(0, 0)), low = shared_place(to.plane(0, PLANES - 1));
#pragma unroll 1
    for (int i = threadIdx.x; i < pieces; i += FEW_THREADS) {
        copy_async16_to(high + i * 16, x.high + row * x.width + i * 16);
        if (PLANES == 2) copy_async16_to(low + i * 16, x.low + row * x.width + i * 16);
        if (i < pieces / 8) copy_async16_to(shared_place(to.scales) + i * 16, x.scales + row * (pieces / 2) + i * 4);
    }
    commit_copies();
}

// A thread's eight numbers of a row.
struct RowPart {
    static const int STEP = 8 * FEW_THREADS;
    float of[8];

    KESTREL_DEVICE void load(const float* from, bool there) {
        uint4 halves[2] = {make_uint4(0u, 0u, 0u, 0u), make_uint4(0u, 0u, 0u, 0u)};
        if (there) halves[0] = load_global16(from), halves[1] = load_global16(from + 4);
        unpack(halves);
    }

    KESTREL_DEVICE void make_ones() {
        for (int i = 0; i < 8; ++i) of[i] = 1.0f;
    }

    KESTREL_DEVICE void load_shared(SharedPlace from, bool there) {
        uint4 halves[2] = {make_uint4(0u, 0u, 0u, 0u), make_uint4(0u, 0u, 0u, 0u)};
        if (there) halves[0] = load_shared16(from), halves[1] = load_shared16(from + 16);
        unpack(halves);
    }

    KESTREL_DEVICE void unpack(const uint4 (&halves)[2]) {
        for (int i = 0; i < 2; ++i) {
            of[4 * i] = __uint_as_float(halves[i].x), of[4 * i + 1] = __uint_as_float(halves[i].y);
            of[4 * i + 2] = __uint_as_float(halves[i].z), of[4 * i + 3] = __uint_as_float(halves[i].w);
        }
    }

    // The first ones of a norm's weights, or ones.
    KESTREL_DEVICE void load_norm(const FewRows& x) {
        make_ones();
        int column = 8 * threadIdx.x;
        if (x.norm != nullptr) load(x.norm + column, column < x.codes.width);
    }
};

// Of a row behind a norm that takes two steps, what a thread has in the second one, and the norm's weights for that: in
// shared memory, by copies that are under way when more of a product's weights are asked for. Each thread reads what it
// has asked for itself. LATE: groups of copies that are asked for behind them, where any are.
template <int LATE>
struct SecondStep {
    SharedPlace norm, row;
    bool there, has_late;

    KESTREL_DEVICE void ask_for_norm(const FewRows& x, SharedPlace room, bool late) {
        int step = RowPart::STEP, column = 8 * threadIdx.x;
        there = column + step < x.codes.width;
        has_late = late;
        norm = room + 4 * column, row = norm + 4 * (x.codes.width - step);
        ask(x.norm + column, norm);
    }

    // from: the thread's numbers in the first step.
    KESTREL_DEVICE void ask_for_row(const float* from) const { ask(from, row); }

    KESTREL_DEVICE void ask(const float* from, SharedPlace to) const {
        if (there)
            for (int half = 0; half < 2; ++half) copy_async16_to(to + 16 * half, from + RowPart::STEP + 4 * half);
        commit_copies();
    }

    KESTREL_DEVICE void wait() const {
        if (has_late)
            wait_copies<LATE>();
        else
            wait_copies<0>();
    }
};

// Where a thread finds what it has of rows, and where what comes of numbers goes: known before they are there. Each
// further step is further by the same in all of them.
template <int PLANES>
struct RowWay {
    const float* from;        // the first row's numbers
    const uint8 *high, *low;  // or its codes
    const float* scales;
    SharedPlace chunk_sum, chunk_sums;  // of the warp's first chunk, and of all
    SharedPlace words, scale;           // of its words in the first plane

    KESTREL_DEVICE RowWay(const FewRows& x, int64 first_row, float4* all_sums, const SharedRows<PLANES>& to) {
        int column = 8 * threadIdx.x, word = column / WARP * 8 + EightCodes::first_word(lane_index());
        int64 before = first_row * x.codes.width;
        from = kept(x.values + before + column);
        high = kept((const uint8*)x.codes.high + before + 16 * threadIdx.x);
        low = kept((const uint8*)x.codes.low + before + 16 * threadIdx.x);
        scales = kept(x.codes.scales + before / WARP + threadIdx.x);
        chunk_sums = kept(shared_place(all_sums)), chunk_sum = chunk_sums + warp_index() * 4;
        if (lane_index() == 0) store_shared4(chunk_sum, 0u);  // where a row hasn't so many
        words = kept(shared_place(to.plane(0, 0)) + 4 * word);
        scale = kept(shared_place(to.scales) + column / WARP * 4);
    }
};

// Rows that are codes already, as they are. All of a round is asked for before any of it is written. SUMS: with those of
// blocks, where there are offsets.
template <int PLANES, bool SUMS>
KESTREL_DEVICE void share_codes(
    const Activation& x, const RowWay<PLANES>& way, int64 first_row, const SharedRows<PLANES>& to
) {
    const int at_once = 2, step = at_once * FEW_THREADS;
    int pieces = (uint32)x.width / 16, blocks = (uint32)x.width / WARP, thread = threadIdx.x;
    for (int token = 0; token < to.tokens; ++token) {
        const uint8 *high = way.high + token * x.width, *low = way.low + token * x.width;
        const float* scales = way.scales + token * blocks;
        const float* sums = x.sums + (first_row + token) * blocks;
#pragma unroll 1
        for (int at = thread; at < pieces; at += step, high += step * 16, low += step * 16, scales += step) {
            uint4 first[at_once], second[at_once];
            float scale[at_once], sum[at_once];
#pragma unroll
            for (int j = 0; j < at_once; ++j) {
                int further = j * FEW_THREADS;
                bool there = at < pieces - further, has_scale = at < blocks - further;
                first[j] = second[j] = make_uint4(0u, 0u, 0u, 0u), scale[j] = sum[j] = 0.0f;
                if (there) first[j] = load_global16(high + further * 16);
                if (there && PLANES == 2) second[j] = load_global16(low + further * 16);
                if (has_scale) scale[j] = load_global4(scales + further);
                if (SUMS && has_scale && x.sums != nullptr) sum[j] = sums[at + further];
            }
#pragma unroll
            for (int j = 0; j < at_once; ++j) {
                int further = at + j * FEW_THREADS;
                if (further < pieces) ((uint4*)to.plane(token, 0))[further] = first[j];
                if (further < pieces && PLANES == 2) ((uint4*)to.plane(token, 1))[further] = second[j];
                if (further < blocks) to.scales[token * to.blocks + further] = scale[j];
                if (SUMS && further < blocks) to.sums[token * to.blocks + further] = sum[j];
            }
        }
    }
}

// From sums of all chunks, as in `norm_factor`: halves are added to each other. Those of one step each thread adds up for
// itself, without a word from others.
KESTREL_DEVICE float mean_of_squares(SharedPlace sums, int width) {
    if (width > RowPart::STEP) {
        float sum = 0.0f;
#pragma unroll 1
        for (int i = lane_index(); i * ROW_CHUNK < width; i += WARP) sum += __uint_as_float(load_shared4(sums + i * 4));
        return warp_sum(sum) * reciprocal((float)width);
    }
    float some[FEW_WARPS];
    for (int i = 0; i < FEW_WARPS / 4; ++i) {
        uint4 four = load_shared16(sums + i * 16);
        some[4 * i] = __uint_as_float(four.x), some[4 * i + 1] = __uint_as_float(four.y);
        some[4 * i + 2] = __uint_as_float(four.z), some[4 * i + 3] = __uint_as_float(four.w);
    }
    for (int half = FEW_WARPS / 2; half > 0; half /= 2)
        for (int i = 0; i < half; ++i) some[i] += some[i + half];
    return some[0] * reciprocal((float)width);
}

// A thread's numbers, behind their norm, become codes, eight neighbours from `start` on. SUMS: with those of blocks, where
// there are offsets. token: which row of these.
template <int PLANES, bool SUMS>
KESTREL_DEVICE void share_codes_of(
    const RowPart& values, const RowWay<PLANES>& way, const SharedRows<PLANES>& to, int token, int start, bool there
) {
    EightCodes codes(values.of, PLANES == 2);
    int32 sum = SUMS ? codes.sum(PLANES == 2) : 0;
    if (!there) return;
    int column = 8 * threadIdx.x;
    SharedPlace words = way.words + token * PLANES * to.stride + start;
    for (int half = 0; half < 2; ++half) {
        store_shared4(words + 8 * half, codes.high[half]);
        if (PLANES == 2) store_shared4(words + to.stride + 8 * half, codes.low[half]);
    }
    if (column % WARP != 0) return;
    int block = token * to.blocks + start / WARP;
    store_shared4(way.scale + 4 * block, __float_as_uint(codes.scale));
    if (SUMS) to.sums[block + column / WARP] = (float)sum;
}

// Rows that are numbers, behind their norm where there is one: `norm` is this thread's part of it, or ones. SUMS: with
// those of blocks, where there are offsets. meanwhile: done while the first row is on its way.
template <int PLANES, bool SUMS, typename Meanwhile>
KESTREL_DEVICE void share_numbers(
    const FewRows& x, const RowPart& norm, const RowWay<PLANES>& way, const SharedRows<PLANES>& to, Meanwhile meanwhile
) {
    const int step = RowPart::STEP;
    int width = x.codes.width, column = 8 * threadIdx.x, of_warp = column - 8 * lane_index();
    for (int token = 0; token < to.tokens; ++token) {
        const float* row = way.from + token * width;
        RowPart values, weights = norm;
        float factor = 1.0f;
        if (x.norm != nullptr) {
            values.load(row, column < width);
            if (token == 0) meanwhile();
#pragma unroll 1
            for (int start = 0; of_warp + start < width; start += step) {
                if (start > 0) values.load(row + start, column + start < width);
                float sum = sum_of_squares(values.of);
                if (lane_index() == 0) store_shared4(way.chunk_sum + start / ROW_CHUNK * 4, __float_as_uint(sum));
            }
            __syncthreads();
            factor = rsqrtf(mean_of_squares(way.chunk_sums, width) + x.eps);
            if (to.tokens > 1) __syncthreads();  // before the next row's are written
        }
#pragma unroll 1
        for (int start = 0; of_warp + start < width; start += step) {
            bool there = column + start < width;
            if (width > step || x.norm == nullptr) values.load(row + start, there);
            if (x.norm != nullptr && start > 0) weights.load(x.norm + column + start, there);
            for (int j = 0; j < 8; ++j) values.of[j] = values.of[j] * factor * weights.of[j];
            share_codes_of<PLANES, SUMS>(values, way, to, token, start, there);
        }
    }
}

// The same of one row that a norm stands before and that takes two steps: all of it is asked for at once.
template <int PLANES, bool SUMS, int LATE, typename Meanwhile>
KESTREL_DEVICE void share_two_steps(
    const FewRows& x, const RowPart& norm, const SecondStep<LATE>& second, const RowWay<PLANES>& way,
    const SharedRows<PLANES>& to, Meanwhile meanwhile
) {
    const int step = RowPart::STEP;
    int width = x.codes.width;
    bool warp_has_more = step + 8 * (int)threadIdx.x - 8 * lane_index() < width;
    RowPart values;
    values.load(way.from, true);
    second.ask_for_row(way.from);
    meanwhile();
    float sum = sum_of_squares(values.of);
    if (lane_index() == 0) store_shared4(way.chunk_sum, __float_as_uint(sum));
    second.wait();
    if (warp_has_more) {
        RowPart more;
        more.load_shared(second.row, second.there);
        sum = sum_of_squares(more.of);
        if (lane_index() == 0) store_shared4(way.chunk_sum + step / ROW_CHUNK * 4, __float_as_uint(sum));
    }
    __syncthreads();
    float factor = rsqrtf(mean_of_squares(way.chunk_sums, width) + x.eps);
    for (int j = 0; j < 8; ++j) values.of[j] = values.of[j] * factor * norm.of[j];
    share_codes_of<PLANES, SUMS>(values, way, to, 0, 0, true);
    if (!warp_has_more) return;
    RowPart weights;
    values.load_shared(second.row, second.there);
    weights.load_shared(second.norm, second.there);
    for (int j = 0; j < 8; ++j) values.of[j] = values.of[j] * factor * weights.of[j];
    share_codes_of<PLANES, SUMS>(values, way, to, 0, step, second.there);
}

// What lies beyond a row's last block, up to whole chains: weights are zeros there, so any codes will do, but nothing
// that is no number.
template <int PLANES>
KESTREL_DEVICE void share_padding(int num_blocks, const SharedRows<PLANES>& to) {
#pragma unroll 1
    for (int token = 0; token < to.tokens; ++token)
#pragma unroll 1
        for (int i = num_blocks + threadIdx.x; i < to.blocks; i += FEW_THREADS)
            to.scales[token * to.blocks + i] = to.sums[token * to.blocks + i] = 0.0f;
}

// All of it, in whichever form. Behind a barrier every thread finds it. meanwhile: done while a row is on its way that
// a norm stands before.
template <int PLANES, bool SUMS, typename Meanwhile>
KESTREL_DEVICE void share_rows(
    const FewRows& x, const RowPart& norm, const RowWay<PLANES>& way, int64 first_row, const SharedRows<PLANES>& to,
    Meanwhile meanwhile
) {
    if (x.codes.high != nullptr)
        share_codes<PLANES, SUMS>(x.codes, way, first_row, to);
    else
        share_numbers<PLANES, SUMS>(x, norm, way, to, meanwhile);
}
