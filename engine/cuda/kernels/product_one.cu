// Products of one row with tiles of codes: what a token is made of. Reading the weights is nearly all of the time, so
// they are asked for before anything else, and whatever stands around a product is done where its row is read or made:
// the norm before it, its gates, the residual behind it. For weights of other forms, and for a few rows at once, there
// is product_few.cu, which comes to the same bits.
#include "one_row.cuh"
#include "route.cuh"

// Which output of its matrix a lane makes, where there are no gates.
KESTREL_DEVICE int output_of(const ProductFew& args, int taken, int job) {
    return (job - taken * args.jobs_each) * TILE + lane_index();
}

// Where that is to go; null where the lane makes none.
KESTREL_DEVICE float* place_of_output(const ProductFew& args, int taken, int token, int job) {
    int n = output_of(args, taken, job);
    float* y = args.y + ((int64)token * args.taken + taken) * args.stride + n;
    return lane_index() < TILE && n < args.weights.rows ? y : nullptr;
}

// What a kernel is for: rows of any kind; a single token's experts that it chooses; a row behind a norm that takes two
// steps.
enum OneRow { ANY_ROW, CHOOSING, TWO_STEPS };

// blockIdx.y is the row where there are experts. A group of teams makes SLOTS tiles for a job: of gates with their ups,
// half of them are gates.
//
// CHOOSING: of a single token's experts, which each block chooses for itself from the router's logits. Were they chosen by
// the router, its blocks would have to wait for one another, and this launch for the one that chooses. Gates wait for the
// logits; what is behind them finds these before its own wait, since it begins only when all gates have waited. Rows of
// gates are codes, the others' numbers without a norm; outputs are set, without a bias.
//
// TWO_STEPS: one step behind the other, the second would be asked for behind weights, and its norm come from afar.
template <int BITS, int PLANES, bool GATES, int SLOTS, OneRow FORM>
KESTREL_DEVICE void product_one(const ProductFew& args) {
    using Stage = Ring<BITS>;
    const bool CHOOSES = FORM == CHOOSING, WIDE = FORM == TWO_STEPS;
    __shared__ int chosen[MOST_TAKEN];
    __shared__ float4 chunk_sums[MOST_ROW_CHUNKS / 4];
    __shared__ Gate gates[FEW_WARPS][2][FEW_ROUNDS];  // of each group: its warps' sums are kept, and outputs made
    const Tiles& weights = args.weights;
    const Place<SLOTS> of_warp(args);
    int lane = lane_index(), chains = weights.chains, group = of_warp.group, token = blockIdx.y;
    bool has_experts = CHOOSES || args.experts != nullptr;
    int end = args.jobs_each * args.taken, step = of_warp.groups * gridDim.x;
    int first_job = group < of_warp.groups ? group * gridDim.x + blockIdx.x : end;
    const int* of_row = has_experts ? chosen + (CHOOSES ? token * args.taken : 0) : nullptr;
    Asking<BITS, GATES, SLOTS> asking(args, of_row, of_warp, first_job, step, end);
    SharedPlace ring = shared_place(dynamic_shared()) + warp_index() * (Stage::COUNT * Stage::STAGE_BYTES);
    SharedPlace asks_at = kept(ring + lane * 16);
    SharedRows<PLANES> rows(dynamic_shared() + Stage::BYTES, weights, 1);
    bool row_first = false;  // what is asked for behind it would be in its way
    if (CHOOSES) {
        // One warp chooses while the others bring the row. By this word of the first lane the compiler knows that it is
        // all of a warp, and doesn't ask at each step which lanes have come.
        bool is_chooser = __shfl_sync(ALL_LANES, warp_index(), 0) == FEW_WARPS - 1;
        row_first = GATES && weights.columns % (4 * WARP) == 0 && weights.columns <= 16 * (FEW_THREADS - WARP);
        if (GATES) wait_for_previous();
        if (is_chooser)
            choose_of_list(
                args.logits, args.num_experts, args.num_chosen, [](int, uint32) {},
                [&](int at, int expert, uint32) { chosen[at] = expert; }
            );
        else if (row_first)
            copy_codes<PLANES>(args.x.codes, token, rows);
        __syncthreads();
    } else if (has_experts) {
        if (!args.experts_known) {
            wait_for_previous();
            row_first = args.x.codes.high != nullptr && weights.columns % (4 * WARP) == 0;
            if (row_first) copy_codes<PLANES>(args.x.codes, token, rows);
        }
        if (threadIdx.x < args.taken) chosen[threadIdx.x] = args.experts[token * args.taken + threadIdx.x];
        __syncthreads();
    }
    auto ask_for = [&](int first, int last) {
#pragma unroll 1
        for (int i = first; i < last; ++i) asking.ask(asks_at + i * Stage::STAGE_BYTES);
    };
    // Where these would be in the way of what the row waits for, some come later.
    const bool has_late = GATES && SLOTS == 4;
    int early = Stage::COUNT - (has_late ? args.late_stages : 0);
    ask_for(0, early);
    auto while_row_comes = [&] {
        if (has_late) ask_for(early, Stage::COUNT);
        asking.bring_next_near(args.near_stages);
    };
    if (lane < 2 * FEW_ROUNDS && of_warp.member == 0 && group < of_warp.groups)
        open_gate((Gate*)gates[group] + lane, lane / FEW_ROUNDS == 0 ? of_warp.members(weights) : 1);
    RowPart norm;
    if (CHOOSES)
        norm.make_ones();
    else
        norm.load_norm(args.x);
    SecondStep<3 * Stage::COUNT / 4> second;
    if (WIDE) second.ask_for_norm(args.x, shared_place(rows.end()), early < Stage::COUNT);
    const RowWay<PLANES> way(args.x, has_experts ? token : 0, chunk_sums, rows);
    share_padding<PLANES>(weights.num_blocks(), rows);
    const int outputs = SLOTS * TILE;
    int round_bytes = chains * STRETCHES * outputs * 4;
    SharedPlace parts_at = kept(shared_place(rows.end()) + group * FEW_ROUNDS * round_bytes);
    SharedPlace gates_at = shared_place(gates[group]);
    if (BITS == 4 || (GATES ? !CHOOSES : PLANES == 2)) gates_at = kept(gates_at);  // others would spill
    int r = lane / 4, q = lane % 4, place = 0, round = 0;
    int until_made = of_warp.member;  // rounds until this warp makes outputs
    SharedPlace words_at = kept(ring + piece_of(q, r) * 16);
    SharedPlace scales_at = kept(ring + Stage::CODE_BYTES + (LANE_ROWS * q + r) * 4);
    LaneInputs<PLANES> inputs(rows, weights, of_warp.chain);
    float* y = GATES ? nullptr : kept(place_of_output(args, asking.taken_of(first_job), token, first_job));
    // Behind the wait, it takes longer to begin than the row takes to be there: so what it asks for isn't in the way. But
    // before that, it begins wherever a block of the launch before this one has ended, and asks while others still run.
    if (args.lets_early) let_next_start();
    wait_for_previous();
    if (!args.lets_early) let_next_start();
    if (row_first)
        wait_copies<Stage::COUNT>();
    else if (CHOOSES && GATES)
        share_codes<PLANES, false>(args.x.codes, way, token, rows);
    else if (CHOOSES)
        share_numbers<PLANES, false>(args.x, norm, way, rows, [] {});
    else if (WIDE)
        share_two_steps<PLANES, false>(args.x, norm, second, way, rows, while_row_comes);
    else
        share_rows<PLANES, false>(args.x, norm, way, has_experts ? token : 0, rows, while_row_comes);
    __syncthreads();

    // One warp of a group makes a round's outputs, another one in each round, while the others go on.
    for (int job = first_job; job < end; job += step, ++round) {
        int turn = round % FEW_ROUNDS;
        SharedPlace kept_gate = gates_at + turn * 8, made = kept_gate + FEW_ROUNDS * 8;
        SharedPlace here = parts_at + turn * round_bytes;
        float before = 0.0f;  // asked for early, by whoever may need it
        if (!GATES && round > 0) y = place_of_output(args, asking.taken_of(job), token, job);
        if (!GATES && !CHOOSES && args.adds && y != nullptr) before = load_global4(y);
#pragma unroll 1
        for (int slot = 0; slot < of_warp.tiles(); ++slot) {
            StretchSums<BITS, PLANES> sums = {0.0f, 0.0f};
#pragma unroll 1
            for (int stage = 0; stage < weights.stretch; ++stage) {
                wait_copies<Stage::COUNT - 1>();
                __syncwarp();
                sums.add(words_at + place, scales_at + place, inputs);
                inputs.move(1);
                __syncwarp();
                asking.ask(asks_at + place);
                place = place == (Stage::COUNT - 1) * Stage::STAGE_BYTES ? 0 : place + Stage::STAGE_BYTES;
            }
            inputs.move(-weights.stretch);
            if (slot == 0 && round >= FEW_ROUNDS) wait_at_place(made, round / FEW_ROUNDS - 1);
            int of_stretch = (of_warp.chain * STRETCHES + q) * outputs, of_tile = (of_warp.first + slot) * TILE;
            SharedPlace to = here + (of_stretch + of_tile + r) * 4;
            store_shared4(to, __float_as_uint(sums.of[0]));
            store_shared4(to + LANE_ROWS * 4, __float_as_uint(sums.of[1]));
        }
        __syncwarp();
        if (lane == 0) arrive_at(kept_gate);
        if (--until_made >= 0) continue;
        until_made += of_warp.members(weights);
        if (GATES) {
            // Where outputs go is found while others are on their way.
            int taken = asking.taken_of(job);
            const int half = outputs / 2;  // gates; a lane makes one
            int column = (job - taken * args.jobs_each) * half + lane;
            int64 row = (int64)token * args.taken + taken;
            float value = 0.0f;
            wait_at_place(kept_gate, round / FEW_ROUNDS);
            if (lane < half) {
                float both[2];
                totals<BITS, 2, outputs>(both, here + lane * 4, half * 4, chains);
                value = gated(both[0], both[1]);
            }
            if (SLOTS == 4)
                store_activation(args.gated, row, column, value);
            else if (lane < half)
                args.gated.values[row * args.gated.width + column] = value;
        } else {
            wait_at_place(kept_gate, round / FEW_ROUNDS);
            if (y != nullptr) {
                float sum[1];
                totals<BITS, 1, outputs>(sum, here + lane * 4, 0, chains);
                if (!CHOOSES && args.bias != nullptr) sum[0] += args.bias[output_of(args, asking.taken_of(job), job)];
                *y = !CHOOSES && args.adds ? before + sum[0] : sum[0];
            }
        }
        __syncwarp();
        if (lane == 0) arrive_at(made);
    }
}

#define PRODUCT_ONE(name, bits, planes, gates, slots, form)                     \
    KESTREL_KERNEL_SHARING(name, FEW_THREADS, 2, ProductFew) {                  \
        product_one<bits, planes, gates, slots, form>(args);                    \
    }

#define PRODUCTS_ONE(name, bits, planes)                                        \
    PRODUCT_ONE(name, bits, planes, false, 1, ANY_ROW)                          \
    PRODUCT_ONE(name##_wide, bits, planes, false, 1, TWO_STEPS)                 \
    PRODUCT_ONE(name##_choosing, bits, planes, false, 1, CHOOSING)              \
    PRODUCT_ONE(name##_gated, bits, planes, true, 4, ANY_ROW)                   \
    PRODUCT_ONE(name##_gated_wide, bits, planes, true, 4, TWO_STEPS)            \
    PRODUCT_ONE(name##_gated_values, bits, planes, true, 2, ANY_ROW)            \
    PRODUCT_ONE(name##_gated_values_choosing, bits, planes, true, 2, CHOOSING)

#if ONLY_BITS != 4
PRODUCTS_ONE(product_codes8_int8_one, 8, 1)
PRODUCTS_ONE(product_codes8_int8x2_one, 8, 2)
#endif
#if ONLY_BITS != 8
PRODUCTS_ONE(product_codes4_int8_one, 4, 1)
PRODUCTS_ONE(product_codes4_int8x2_one, 4, 2)
#endif
