// Products of up to four rows with tiles of codes, and of one row with weights of any form: what product_one.cu is for a
// token's, with the same bits. So a row has the same bits however many there are, and the same as in products of many
// rows. Of the eight columns of a multiplication, two belong to a block: two planes, or two rows.
#include "few_rows.cuh"

static const int FEW_TOKENS = 4;

// The next stage that is asked for: `slot` of those tiles that a group makes at a time for a job.
struct Cursor {
    int job, slot, stage;
};

template <int BITS, int PLANES, bool GATES, int SLOTS>
struct FewProduct {
    // Two columns belong to a block: its planes of one token, or two tokens.
    static const int AT_ONCE = PLANES == 2 ? 1 : 2;

    const ProductFew& args;
    const int* chosen;  // experts of this row
    unsigned char* ring;
    SharedPlace asks_at;
    int lane, r, q, chain, group, groups, step, jobs, reads_at;
    bool plain;
    Cursor asked;
    const uint8 *codes, *scales;  // where it is
    float sums[2][FEW_TOKENS];    // of rows r and r + 8

    KESTREL_DEVICE FewProduct(const ProductFew& arguments, const int* experts) : args(arguments), chosen(experts) {
        const Tiles& weights = args.weights;
        lane = lane_index(), r = lane / 4, q = lane % 4;
        ring = dynamic_shared() + warp_index() * Ring<BITS>::COUNT * Ring<BITS>::STAGE_BYTES;
        asks_at = shared_place(ring), reads_at = piece_of(q, r) * 16;
        groups = FEW_WARPS / weights.chains;
        group = warp_index() / weights.chains, chain = warp_index() - group * weights.chains;
        plain = weights.narrow_scales && weights.blocks_a_scale == 1 && weights.offsets == nullptr;
        step = gridDim.x * groups;
        jobs = args.jobs_each * args.taken;
    }

    KESTREL_DEVICE int num_tokens() const { return args.tokens; }
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
        for (int t = 0; t < FEW_TOKENS; ++t) sums[0][t] = sums[1][t] = 0.0f;
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
        for (int first = 0; first < FEW_TOKENS; first += AT_ONCE) {
            if (first > 0 && first >= args.tokens) break;
            int32 c[4] = {0, 0, 0, 0};
            multiply(words, block, first, rows, c);
            for (int t = 0; t < AT_ONCE && first + t < FEW_TOKENS; ++t) {
                int of_row = min(first + t, num_tokens() - 1) * rows.blocks + block;
                float scale = rows.scales[of_row];
                for (int i = 0; i < 2; ++i) {
                    int32 dot = PLANES == 2 ? c[2 * i] * LOW_STEPS + c[2 * i + 1] : c[2 * i + t];
                    float& sum = sums[i][first + t];
                    sum = fmaf((float)dot * by[i], scale, sum);
                    if (weights.offsets == nullptr) continue;
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
        for (int t = 0; t < FEW_TOKENS; ++t) {
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

// blockIdx.y is the row where there are experts. A group of warps makes SLOTS tiles for a job: of gates with their ups,
// half of them are gates.
template <int BITS, int PLANES, bool GATES, int SLOTS>
KESTREL_DEVICE void product_few(const ProductFew& args) {
    __shared__ int chosen[MOST_TAKEN];
    __shared__ float4 chunk_sums[MOST_ROW_CHUNKS / 4];
    __shared__ Gate gates[FEW_WARPS][2][FEW_ROUNDS];  // of each group: its chains' sums are kept, and outputs made
    if (threadIdx.x < 2 * FEW_WARPS * FEW_ROUNDS)
        open_gate((Gate*)gates + threadIdx.x, threadIdx.x / FEW_ROUNDS % 2 == 0 ? args.weights.chains : 1);
    bool has_experts = args.experts != nullptr;
    FewProduct<BITS, PLANES, GATES, SLOTS> product(args, has_experts ? chosen : nullptr);
    const int ring = Ring<BITS>::COUNT;
    int first_row = has_experts ? blockIdx.y : 0, tokens = product.num_tokens();
    if (!has_experts) product.begin();
    RowPart norm;
    norm.load_norm(args.x);
    SharedRows<PLANES> rows(dynamic_shared() + Ring<BITS>::BYTES, args.weights, tokens);
    share_padding<PLANES>(args.weights.num_blocks(), rows);
    wait_for_previous();
    if (has_experts) {
        if (threadIdx.x < args.taken) chosen[threadIdx.x] = args.experts[first_row * args.taken + threadIdx.x];
        __syncthreads();
        product.begin();
    }
    const RowWay<PLANES> way(args.x, first_row, chunk_sums, rows);
    share_rows<PLANES, true>(args.x, norm, way, first_row, rows, [] {});
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
            int64 scales = product.tile_of(job, slot) * args.weights.tile_scales();
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

#define PRODUCT_FEW(name, bits, planes)                                                                               \
    KESTREL_KERNEL_SHARING(name, FEW_THREADS, 2, ProductFew) { product_few<bits, planes, false, 1>(args); }           \
    KESTREL_KERNEL_SHARING(name##_gated, FEW_THREADS, 2, ProductFew) { product_few<bits, planes, true, 4>(args); }    \
    KESTREL_KERNEL_SHARING(name##_gated_values, FEW_THREADS, 2, ProductFew) {                                         \
        product_few<bits, planes, true, 2>(args);                                                                     \
    }

#if ONLY_BITS != 4
PRODUCT_FEW(product_codes8_int8_few, 8, 1)
PRODUCT_FEW(product_codes8_int8x2_few, 8, 2)
#endif
#if ONLY_BITS != 8
PRODUCT_FEW(product_codes4_int8_few, 4, 1)
PRODUCT_FEW(product_codes4_int8x2_few, 4, 2)
#endif
