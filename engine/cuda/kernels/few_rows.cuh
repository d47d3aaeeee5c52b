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
    const int32* experts;  // (T, k), which matrices each row takes; null: there is one
    int64 stride;          // of y
    int32 tokens;          // T, at most 4; with experts 1, and each has blocks of its own
    int32 taken;           // k; 1 where there are no experts. Row k t + i of y is of row t and its expert i
    int32 jobs_each;       // of one matrix: how many times the tiles that a group makes at a time
    int32 adds;
    int32 experts_known;   // since before the launch before this one
    int32 by_chains;       // 256 / chains, rounded up
    uint32 by_jobs;        // 2^32 / jobs_each, rounded up; 0: jobs_each is 1
    int32 is_short;        // and what is behind it reads nothing but weights before its own wait
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

// Rows that are codes already, as they are. All of a round is asked for before any of it is written. SUMS: with those of
// blocks, where there are offsets.
template <int PLANES, bool SUMS>
KESTREL_DEVICE void share_codes(const Activation& x, int64 first_row, const SharedRows<PLANES>& to) {
    const int at_once = 2;
    int pieces = x.width / 16, blocks = x.width / WARP;
    for (int token = 0; token < to.tokens; ++token) {
        int64 row = first_row + token;
        const uint4* high = (const uint4*)(x.high + row * x.width);
        const uint4* low = (const uint4*)(x.low + row * x.width);
        const float* scales = x.scales + row * blocks;
        const float* sums = x.sums + row * blocks;
#pragma unroll 1
        for (int i = threadIdx.x; i < pieces; i += at_once * FEW_THREADS) {
            uint4 first[at_once], second[at_once];
            float scale[at_once], sum[at_once];
#pragma unroll
            for (int j = 0; j < at_once; ++j) {
                int at = i + j * FEW_THREADS;
                bool there = at < pieces, has_scale = at < blocks;
                first[j] = second[j] = make_uint4(0u, 0u, 0u, 0u), scale[j] = sum[j] = 0.0f;
                if (there) first[j] = high[at];
                if (there && PLANES == 2) second[j] = low[at];
                if (has_scale) scale[j] = scales[at];
                if (SUMS && has_scale && x.sums != nullptr) sum[j] = sums[at];
            }
#pragma unroll
            for (int j = 0; j < at_once; ++j) {
                int at = i + j * FEW_THREADS;
                if (at < pieces) ((uint4*)to.plane(token, 0))[at] = first[j];
                if (at < pieces && PLANES == 2) ((uint4*)to.plane(token, 1))[at] = second[j];
                if (at < blocks) to.scales[token * to.blocks + at] = scale[j];
                if (SUMS && at < blocks) to.sums[token * to.blocks + at] = sum[j];
            }
        }
    }
}

// The same of one row, of a multiple of 128, as copies that are under way when this returns.
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

    // start: of the warp's.
    KESTREL_DEVICE void load(const float* row, int width, int start) {
        whole_eight(row, start + 8 * lane_index(), width, of);
    }

    // The first ones of a norm's weights, or ones.
    KESTREL_DEVICE void load_norm(const FewRows& x) {
        for (int i = 0; i < 8; ++i) of[i] = 1.0f;
        if (x.norm != nullptr) load(x.norm, x.codes.width, 8 * WARP * warp_index());
    }
};

// Rows that are numbers, behind their norm where there is one: `norm` is this thread's part of it, or ones. SUMS: with
// those of blocks, where there are offsets.
template <int PLANES, bool SUMS>
KESTREL_DEVICE void share_numbers(const FewRows& x, const RowPart& norm, int64 first_row, const SharedRows<PLANES>& to) {
    __shared__ float chunk_sums[MOST_ROW_CHUNKS];
    const int step = RowPart::STEP;
    int width = x.codes.width, column = 8 * threadIdx.x, of_warp = column - 8 * lane_index();
    for (int token = 0; token < to.tokens; ++token) {
        const float* row = x.values + (first_row + token) * width;
        RowPart values, weights = norm;
        float factor = 1.0f;
        if (x.norm != nullptr) {
#pragma unroll 1
            for (int start = of_warp; start < width; start += step) {
                values.load(row, width, start);
                float sum = sum_of_squares(values.of);
                if (lane_index() == 0) chunk_sums[start / ROW_CHUNK] = sum;
            }
            __syncthreads();
            factor = norm_factor(chunk_sums, width, x.eps);
            if (to.tokens > 1) __syncthreads();  // before the next row's are written
        }
#pragma unroll 1
        for (int start = of_warp; start < width; start += step) {
            int at = start + 8 * lane_index();
            if (width > step || x.norm == nullptr) values.load(row, width, start);
            if (x.norm != nullptr && start > of_warp) weights.load(x.norm, width, start);
            for (int j = 0; j < 8; ++j) values.of[j] = values.of[j] * factor * weights.of[j];
            EightCodes codes(values.of, PLANES == 2);
            int32 sum = SUMS ? codes.sum(PLANES == 2) : 0;
            if (at >= width) continue;
            int word = at / WARP * 8 + EightCodes::first_word(lane_index());
            for (int half = 0; half < 2; ++half) {
                ((uint32*)to.plane(token, 0))[word + 2 * half] = codes.high[half];
                if (PLANES == 2) ((uint32*)to.plane(token, 1))[word + 2 * half] = codes.low[half];
            }
            if (at % WARP != 0) continue;
            to.scales[token * to.blocks + at / WARP] = codes.scale;
            if (SUMS) to.sums[token * to.blocks + at / WARP] = (float)sum;
        }
    }
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

// All of it, in whichever form. Behind a barrier every thread finds it.
template <int PLANES, bool SUMS>
KESTREL_DEVICE void share_rows(const FewRows& x, const RowPart& norm, int64 first_row, const SharedRows<PLANES>& to) {
    if (x.codes.high != nullptr)
        share_codes<PLANES, SUMS>(x.codes, first_row, to);
    else
        share_numbers<PLANES, SUMS>(x, norm, first_row, to);
}
