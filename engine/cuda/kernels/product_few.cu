// Products of a few rows with tiles of codes: what a token is made of. Reading the weights is nearly all of the time, so
// they are asked for before anything else, and whatever stands around a product is done where its rows are read or
// made: the norm before it, its gates, the residual behind it.
//
// Up to 16 warps make a tile of 16 outputs together, each a chain of blocks, of which each lane of a row takes a stretch:
// block after block the exact integer product, times the weight's scale, times the row's scale, added to the stretch's
// sum. Then all stretches are added up in their order. So a row has the same bits however many there are, and the same
// as in products of many rows.
//
// One multiplication of matrices has eight inputs of each of four blocks: a row of codes has one of them beside the
// other, and of the eight columns two have the inputs that belong to a block, others zeros there. So after four of
// them, each lane has the results of its own block: of two planes, or of two rows.
#include "activation.cuh"
#include "tiles.cuh"

static const int FEW_THREADS = 512;  // such that blocks of two launches fit on a processor: the next one's can wait there
static const int FEW_WARPS = FEW_THREADS / WARP;
static const int FEW_TOKENS = 4;
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

// The next stage that is asked for: `slot` of those tiles that a group makes at a time for a job.
struct Cursor {
    int job, slot, stage;
};

// ONE: of one token, with a narrow scale for each block and no offsets, which is what nearly all products are.
template <int BITS, int PLANES, bool ONE, bool GATES, int SLOTS>
struct FewProduct {
    // Two columns belong to a block: its planes of one token, or two tokens.
    static const int AT_ONCE = PLANES == 2 ? 1 : 2;
    static const int MOST = ONE ? 1 : FEW_TOKENS;

    const ProductFew& args;
    const int* chosen;  // experts of this row
    unsigned char* ring;
    SharedPlace asks_at;
    int lane, r, q, chain, group, groups, step, jobs, reads_at;
    bool plain;
    Cursor asked;
    const uint8 *codes, *scales;  // where it is
    float sums[2][MOST];          // of rows r and r + 8

    KESTREL_DEVICE FewProduct(const ProductFew& arguments, const int* experts) : args(arguments), chosen(experts) {
        const Tiles& weights = args.weights;
        lane = lane_index(), r = lane / 4, q = lane % 4;
        ring = dynamic_shared() + warp_index() * Ring<BITS>::COUNT * Ring<BITS>::STAGE_BYTES;
        asks_at = shared_place(ring), reads_at = piece_of(q, r) * 16;
        groups = FEW_WARPS / weights.chains;
        group = warp_index() / weights.chains, chain = warp_index() - group * weights.chains;
        plain = ONE || (weights.narrow_scales && weights.blocks_a_scale == 1 && weights.offsets == nullptr);
        step = gridDim.x * groups;
        jobs = args.jobs_each * args.taken;
    }

    KESTREL_DEVICE int num_tokens() const { return ONE ? 1 : args.tokens; }
    KESTREL_DEVICE int first_job() const { return group < groups ? group * gridDim.x + blockIdx.x : jobs; }
    KESTREL_DEVICE int taken_of(int job) const { return chosen == nullptr ? 0 : job / args.jobs_each; }

    // Among those of all experts.
    KESTREL_DEVICE int64 tile_of(int job, int slot) const {
        int tiles = args.weights.num_tiles(), taken = taken_of(job), in_expert = job - taken * args.jobs_each;
        int tile = GATES ? slot / (SLOTS / 2) * (tiles / 2) + in_expert * (SLOTS / 2) + slot % (SLOTS / 2)
                         : in_expert * SLOTS + slot;
        return chosen == nullptr ? tile : (int64)chosen[taken] * tiles + tile;
    }

    KESTREL_DEVICE void begin() {
        asked = {first_job(), 0, 0};
        seek();
#pragma unroll 1
        for (int i = 0; i < Ring<BITS>::COUNT; ++i) ask(i);
    }

    // To the beginning of a tile.
    KESTREL_DEVICE void seek() {
        if (asked.job >= jobs) return;
        const Tiles& weights = args.weights;
        int64 stage = tile_of(asked.job, asked.slot) * weights.num_stages() + chain * weights.stretch;
        codes = weights.codes + stage * Ring<BITS>::CODE_BYTES + lane * 16;
        scales = weights.scales + stage * Ring<BITS>::SCALE_BYTES + lane * 16;
    }

    // Asks for a stage's weights, into place `index` of the ring.
    KESTREL_DEVICE void ask(int index) {
        if (asked.job < jobs) {
            const int units = Ring<BITS>::CODE_BYTES / UNIT_BYTES;
            SharedPlace stage = asks_at + index * Ring<BITS>::STAGE_BYTES;
            SharedPlace to = stage + lane * 16;
            for (int i = 0; i < units; ++i) copy_async16_to(to + i * UNIT_BYTES, codes + i * UNIT_BYTES);
            if (plain && lane < Ring<BITS>::SCALE_BYTES / 16)
                copy_async16_to(stage + Ring<BITS>::CODE_BYTES + lane * 16, scales);
            codes += Ring<BITS>::CODE_BYTES;
            scales += Ring<BITS>::SCALE_BYTES;
            if (++asked.stage == args.weights.stretch) {
                asked.stage = 0;
                if (++asked.slot == SLOTS) asked.slot = 0, asked.job += step;
                seek();
            }
        }
        commit_copies();
    }

    KESTREL_DEVICE void clear() {
        for (int t = 0; t < MOST; ++t) sums[0][t] = sums[1][t] = 0.0f;
    }

    // `first_scale`: of the tile, where scales have to be looked up.
    KESTREL_DEVICE void add_stage(int64 first_scale, int stage, int index, const SharedRows<PLANES>& rows) {
        const Tiles& weights = args.weights;
        const int pieces = BlockWords<BITS>::PIECES;
        const unsigned char* from = ring + index * Ring<BITS>::STAGE_BYTES;
        int block = (chain * STRETCHES + q) * weights.stretch + stage;
        BlockWords<BITS> words[2];
        for (int i = 0; i < 2; ++i)
            for (int j = 0; j < pieces; ++j)
                words[i].pieces[j] = *(const uint4*)(from + (i * pieces + j) * UNIT_BYTES + reads_at);
        uint32 pair = *(const uint32*)(from + Ring<BITS>::CODE_BYTES + (LANE_ROWS * q + r) * 4);
        float by[2] = {half_to_float((uint16)pair), half_to_float((uint16)(pair >> 16))};
        int64 place = 0;
        if (!plain) {
            place = first_scale + weights.scale_place(min(block, weights.num_blocks() - 1), r);
            for (int i = 0; i < 2; ++i) by[i] = scale_at(weights.scales, weights.narrow_scales, place + i);
        }
        for (int first = 0; first < MOST; first += AT_ONCE) {
            if (first > 0 && first >= args.tokens) break;
            int32 c[4] = {0, 0, 0, 0};
            multiply(words, block, first, rows, c);
            for (int t = 0; t < AT_ONCE && first + t < MOST; ++t) {
                int of_row = min(first + t, num_tokens() - 1) * rows.blocks + block;
                float scale = rows.scales[of_row];
                for (int i = 0; i < 2; ++i) {
                    int32 dot = PLANES == 2 ? c[2 * i] * LOW_STEPS + c[2 * i + 1] : c[2 * i + t];
                    float& sum = sums[i][first + t];
                    sum = fmaf((float)dot * by[i], scale, sum);
                    if (ONE || weights.offsets == nullptr) continue;
                    float offset = scale_at(weights.offsets, weights.narrow_scales, place + i) * scale;
                    sum = fmaf(rows.sums[of_row] * (float)BlockWords<BITS>::ONE, offset, sum);
                }
            }
        }
    }

    // Of this lane's block with its two columns, of the token `first` and, with one plane, the next one.
    KESTREL_DEVICE void multiply(
        const BlockWords<BITS>* words, int block, int first, const SharedRows<PLANES>& rows, int32* c
    ) const {
        // As a column this lane is r: it has inputs of one block, and for the others' zeros.
        int token = PLANES == 2 ? first : min(first + r % 2, num_tokens() - 1);
        const uint8* inputs = rows.plane(token, PLANES == 2 ? r % 2 : 0) + block * WARP;
        uint4 early = make_uint4(0u, 0u, 0u, 0u), late = early;
        if (r / 2 == q) early = *(const uint4*)inputs, late = *(const uint4*)(inputs + 16);
        for (int i = 0; i < 4; ++i) {
            uint32 a[4] = {words[0].word(0, i), words[1].word(0, i), words[0].word(1, i), words[1].word(1, i)};
            const uint4& four = i < 2 ? early : late;
            uint32 b[2] = {i % 2 == 0 ? four.x : four.z, i % 2 == 0 ? four.y : four.w};
            mma_s8(c, a, b);
        }
    }

    // The stretches' sums of a tile.
    KESTREL_DEVICE void keep(float* parts, int slot) const {
        for (int t = 0; t < MOST; ++t) {
            if (t >= num_tokens()) break;
            float* to = parts + (((chain * STRETCHES + q) * num_tokens() + t) * SLOTS + slot) * TILE;
            to[r] = sums[0][t];
            to[r + LANE_ROWS] = sums[1][t];
        }
    }

    // All of a row's stretches; `output` is of the job's. Codes of 4 bits were 16-fold until here.
    KESTREL_DEVICE float total(const float* parts, int token, int output) const {
        int outputs = num_tokens() * SLOTS * TILE;
        const float* from = parts + token * SLOTS * TILE + output;
        float sum = from[0];
        int count = args.weights.chains * STRETCHES;
#pragma unroll 1
        for (int first = 1; first < count; first += 16) {
            float some[16];  // asked for together
            for (int i = 0; i < 16; ++i) some[i] = first + i < count ? from[(first + i) * outputs] : 0.0f;
            for (int i = 0; i < 16; ++i)
                if (first + i < count) sum += some[i];
        }
        return sum * (1.0f / BlockWords<BITS>::ONE);
    }
};

// Rows that are codes already, as they are. All of a round is asked for before any of it is written.
template <int PLANES>
KESTREL_DEVICE void share_codes(const Activation& x, int64 first_row, const SharedRows<PLANES>& to) {
    int width = x.width, blocks = width / WARP;
    for (int token = 0; token < to.tokens; ++token) {
        int64 row = first_row + token;
        const uint4* high = (const uint4*)(x.high + row * width);
        const uint4* low = (const uint4*)(x.low + row * width);
#pragma unroll 1
        for (int i = threadIdx.x; i < width / 16; i += FEW_THREADS) {
            bool has_scale = i < blocks;
            uint4 first = high[i], second = PLANES == 2 ? low[i] : first;
            float scale = has_scale ? x.scales[row * blocks + i] : 0.0f;
            float sum = has_scale && x.sums != nullptr ? x.sums[row * blocks + i] : 0.0f;
            ((uint4*)to.plane(token, 0))[i] = first;
            if (PLANES == 2) ((uint4*)to.plane(token, 1))[i] = second;
            if (has_scale) to.scales[token * to.blocks + i] = scale, to.sums[token * to.blocks + i] = sum;
        }
    }
}

// Rows that are numbers, behind their norm where there is one: `norm` are this thread's first eight of it.
template <int PLANES>
KESTREL_DEVICE void share_values(const FewRows& x, const float* norm, int64 first_row, const SharedRows<PLANES>& to) {
    __shared__ float chunk_sums[MOST_ROW_CHUNKS];
    int width = x.codes.width, column = 8 * threadIdx.x;
    for (int token = 0; token < to.tokens; ++token) {
        const float* row = x.values + (first_row + token) * width;
        float first[8], values[8], factor = 1.0f;
        whole_eight(row, column, width, first);
        if (x.norm != nullptr) {
            float sum = sum_of_squares(first);
            if (lane_index() == 0 && column < width) chunk_sums[warp_index()] = sum;
#pragma unroll 1
            for (int i = column + 8 * FEW_THREADS; i - 8 * lane_index() < width; i += 8 * FEW_THREADS) {
                whole_eight(row, i, width, values);
                sum = sum_of_squares(values);
                if (lane_index() == 0) chunk_sums[i / ROW_CHUNK] = sum;
            }
            __syncthreads();
            factor = norm_factor(chunk_sums, width, x.eps);
            __syncthreads();  // before the next row's are written
        }
#pragma unroll 1
        for (int i = column; i - 8 * lane_index() < width; i += 8 * FEW_THREADS) {
            float weights[8];
            for (int j = 0; j < 8; ++j) values[j] = first[j], weights[j] = norm[j];
            if (i != column) {
                whole_eight(row, i, width, values);
                if (x.norm != nullptr) whole_eight(x.norm, i, width, weights);
            }
            if (x.norm != nullptr)
                for (int j = 0; j < 8; ++j) values[j] = values[j] * factor * weights[j];
            EightCodes codes(values, PLANES == 2);
            if (i >= width) continue;
            int word = i / WARP * 8 + EightCodes::first_word(lane_index());
            for (int half = 0; half < 2; ++half) {
                ((uint32*)to.plane(token, 0))[word + 2 * half] = codes.high[half];
                if (PLANES == 2) ((uint32*)to.plane(token, 1))[word + 2 * half] = codes.low[half];
            }
            if (i % WARP != 0) continue;
            to.scales[token * to.blocks + i / WARP] = codes.scale;
            to.sums[token * to.blocks + i / WARP] = (float)codes.sum;
        }
    }
}

// What lies beyond a row's last block, up to whole chains: weights are zeros there, so any codes will do, but nothing
// that is no number.
template <int PLANES>
KESTREL_DEVICE void share_padding(int num_blocks, const SharedRows<PLANES>& to) {
    int missing = to.blocks - num_blocks;
    for (int i = threadIdx.x; i < to.tokens * missing; i += FEW_THREADS) {
        int at = i / missing * to.blocks + num_blocks + i % missing;
        to.scales[at] = to.sums[at] = 0.0f;
    }
}

// blockIdx.y is the row where there are experts. A group of warps makes SLOTS tiles for a job: of gates with their ups,
// half of them are gates.
template <int BITS, int PLANES, bool ONE, bool GATES, int SLOTS>
KESTREL_DEVICE void product_few(const ProductFew& args) {
    __shared__ int chosen[MOST_TAKEN];
    __shared__ Gate gates[FEW_WARPS][2][FEW_ROUNDS];  // of each group: its chains' sums are kept, and outputs made
    if (threadIdx.x < 2 * FEW_WARPS * FEW_ROUNDS)
        open_gate((Gate*)gates + threadIdx.x, threadIdx.x / FEW_ROUNDS % 2 == 0 ? args.weights.chains : 1);
    bool has_experts = args.experts != nullptr;
    FewProduct<BITS, PLANES, ONE, GATES, SLOTS> product(args, has_experts ? chosen : nullptr);
    const int ring = Ring<BITS>::COUNT;
    int first_row = has_experts ? blockIdx.y : 0, tokens = product.num_tokens();
    if (!has_experts) product.begin();
    float norm[8];
    if (args.x.norm != nullptr) whole_eight(args.x.norm, 8 * threadIdx.x, args.x.codes.width, norm);
    SharedRows<PLANES> rows(dynamic_shared() + Ring<BITS>::BYTES, args.weights, tokens);
    share_padding<PLANES>(args.weights.num_blocks(), rows);
    wait_for_previous();
    if (has_experts) {
        if (threadIdx.x < args.taken) chosen[threadIdx.x] = args.experts[first_row * args.taken + threadIdx.x];
        __syncthreads();
        product.begin();
    }
    if (args.x.codes.high != nullptr)
        share_codes<PLANES>(args.x.codes, first_row, rows);
    else
        share_values<PLANES>(args.x, norm, first_row, rows);
    __syncthreads();
    let_next_start();  // not before: what the next one asks for would be in the way of these rows

    // One warp of a group makes a round's outputs, another one in each round, while the others go on.
    const int lanes_outputs = SLOTS * TILE / 2;  // of gates; each lane makes one
    int lane = product.lane, round_parts = args.weights.chains * STRETCHES * SLOTS * TILE * tokens;
    float* parts = rows.end() + product.group * FEW_ROUNDS * round_parts;
    int place = 0, round = 0;
    for (int job = product.first_job(); job < product.jobs; job += product.step, ++round) {
        int turn = round % FEW_ROUNDS;
        Gate *kept = &gates[product.group][0][turn], *made = &gates[product.group][1][turn];
        float* here = parts + turn * round_parts;
        int taken = product.taken_of(job), in_expert = job - taken * args.jobs_each;
        int64 row = (int64)first_row * args.taken + taken;
        float before = 0.0f;  // asked for early, by whoever may need it
        if (!GATES && args.adds && lane < TILE && in_expert * TILE + lane < args.weights.rows)
            before = args.y[row * args.stride + in_expert * TILE + lane];
        for (int slot = 0; slot < SLOTS; ++slot) {
            int64 scales = ONE ? 0 : product.tile_of(job, slot) * args.weights.tile_scales();
            product.clear();
            for (int stage = 0; stage < args.weights.stretch; ++stage) {
                wait_copies<ring - 1>();
                __syncwarp();
                product.add_stage(scales, stage, place, rows);
                __syncwarp();
                product.ask(place);
                place = (place + 1) % ring;
            }
            if (slot == 0 && round >= FEW_ROUNDS) wait_at(made, round / FEW_ROUNDS - 1);
            product.keep(here, slot);
        }
        __syncwarp();
        if (lane == 0) arrive(kept);
        if (product.chain != round % args.weights.chains) continue;
        wait_at(kept, round / FEW_ROUNDS);
        if (GATES) {
            for (int token = 0; token < tokens; ++token) {
                int column = in_expert * lanes_outputs + lane;
                float value = 0.0f;
                if (lane < lanes_outputs)
                    value = gated(product.total(here, token, lane), product.total(here, token, lanes_outputs + lane));
                if (SLOTS == 4)
                    store_activation(args.gated, row + token, column, value);
                else if (lane < lanes_outputs)
                    args.gated.values[(row + token) * args.gated.width + column] = value;
            }
        } else {
            for (int token = 0; token < tokens; ++token) {
                int n = in_expert * TILE + lane;
                if (lane >= TILE || n >= args.weights.rows) break;
                float sum = product.total(here, token, lane);
                if (args.bias != nullptr) sum += args.bias[n];
                float* y = args.y + (row + token) * args.stride + n;
                if (args.adds && token > 0) before = *y;
                *y = args.adds ? before + sum : sum;
            }
        }
        __syncwarp();
        if (lane == 0) arrive(made);
    }
}

#define PRODUCT_FEW(name, bits, planes, one)                                                                     \
    KESTREL_KERNEL_SHARING(name, FEW_THREADS, 2, ProductFew) { product_few<bits, planes, one, false, 1>(args); }   \
    KESTREL_KERNEL_SHARING(name##_gated, FEW_THREADS, 2, ProductFew) {                                             \
        product_few<bits, planes, one, true, 4>(args);                                                           \
    }                                                                                                            \
    KESTREL_KERNEL_SHARING(name##_gated_values, FEW_THREADS, 2, ProductFew) {                                      \
        product_few<bits, planes, one, true, 2>(args);                                                           \
    }

#if ONLY_BITS != 4
PRODUCT_FEW(product_codes8_int8_one, 8, 1, true)
PRODUCT_FEW(product_codes8_int8x2_one, 8, 2, true)
PRODUCT_FEW(product_codes8_int8_few, 8, 1, false)
PRODUCT_FEW(product_codes8_int8x2_few, 8, 2, false)
#endif
#if ONLY_BITS != 8
PRODUCT_FEW(product_codes4_int8_one, 4, 1, true)
PRODUCT_FEW(product_codes4_int8x2_one, 4, 2, true)
PRODUCT_FEW(product_codes4_int8_few, 4, 1, false)
PRODUCT_FEW(product_codes4_int8x2_few, 4, 2, false)
#endif
