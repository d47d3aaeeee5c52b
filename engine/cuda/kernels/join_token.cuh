// One token's splits become one: what a block of `attend_token` is about, and how the last block of a head to arrive puts
// together what all of them have left.
#pragma once

#include "attention_codes.cuh"

static const int HEAD_SET = 8;  // query heads at once: bytes of theirs and of what is left fill a tile
static_assert(CHUNK == 4 * WARP && HEAD_SET <= SPLIT_WARPS, "a warp has a head's chunk, four features a lane");

// When splits are put together.
static const int RING_SPLITS = 80;   // on their way, of all warps
static const int RING_STEPS = 5;     // of a warp, see SplitRing
static const int FEW_HEADS = 4;      // where they have twice the room
static_assert(RING_SPLITS == SPLIT_WARPS * 2 * RING_STEPS && RING_SPLITS == FEW_HEADS * 4 * RING_STEPS, "rings");
static const int LANE_JOINTS = 2;    // next to each other
static const int JOINTS = LANE_JOINTS * WARP;

// What a block has to do.
struct TokenBlock {
    int kv_head, group, width;
    int32 position, start;    // of the token, and where the split starts
    int first, last, split;   // splits that the token sees; the block's
    int warps;                // that have tokens: as many as these, from the first one on

    KESTREL_DEVICE TokenBlock(const CodeAttention& args)
        : kv_head(blockIdx.x), width(args.layout.width), position((int32)args.step->first) {
        group = args.query_heads / args.layout.heads;
        first = oldest_seen(position, args.window) / SPLIT;
        last = position / SPLIT;
        split = blockIdx.y == 0 ? last : (int)blockIdx.y <= last ? earlier_split() : last + 1;
        start = split * SPLIT;
        warps = min(SPLIT_WARPS, (position - start) / WARP_TOKENS + 1);
    }

    // Which of them the block has, unless it has the token's own one, or none.
    KESTREL_DEVICE static int earlier_split() { return max((int)blockIdx.y - 1, 0); }

    KESTREL_DEVICE bool sees() const { return split >= first && split <= last; }
    KESTREL_DEVICE bool keeps() const { return split == last; }  // the token's own keys and values
    KESTREL_DEVICE bool is_only() const { return first == last; }
    KESTREL_DEVICE bool has_tokens() const { return warp_index() < warps; }
};

// What a block leaves of a split: of each query head sums of values, and behind all of these the largest score and the sum
// of weights.
KESTREL_DEVICE float* split_numbers(const CodeAttention& args) {
    int32 rows = args.query_heads * gridDim.y;
    return args.partials + (int64)rows * args.layout.width;
}

// What there is in its place when splits are put together.
struct JoinShared {
    float4 slots[RING_SPLITS][WARP];       // sums: of each split four features a lane
    Joint joints[SPLIT_WARPS][JOINTS];     // of a warp's head, and splits that follow each other
    float totals[SPLIT_WARPS][JOINTS];     // of those, sums of weights
};

// Splits of a head on their way to a warp, four features a lane, STEP of them at a time: some are asked for ahead of
// those that are added. Lanes read what they have asked for themselves.
template <int STEP>
struct SplitRing {
    static const int SIZE = STEP * RING_STEPS;
    float4 (*slots)[WARP];
    const float* from;
    int width, left;  // left: splits from there on; 0 for lanes that have no features
    int slot;

    KESTREL_DEVICE SplitRing(float4 (*slots)[WARP], const float* from, int splits, int width)
        : slots(slots), from(from), width(width), left(splits), slot(0) {}

    // For the next few. Copies are a group, also where there are none.
    KESTREL_DEVICE void ask() {
        for (int i = 0; i < STEP; ++i)
            if (i < left) copy_async16(&slots[slot + i][lane_index()], from + i * width);
        commit_copies();
        from += STEP * width;
        left -= STEP;
        slot = slot + STEP == SIZE ? 0 : slot + STEP;
    }
};

// How a head's next splits are put together, by a warp. so_far: the largest score before them, then with them.
KESTREL_DEVICE void find_joints(Joint* joints, float* totals, const float2 (&numbers)[LANE_JOINTS], float& so_far) {
    int lane = lane_index();
    float largest = fmaxf(numbers[0].x, numbers[1].x);  // up to and with this lane's splits
    for (int distance = 1; distance < WARP; distance *= 2)
        largest = fmaxf(largest, __shfl_up_sync(ALL_LANES, largest, distance));
    float before = fmaxf(so_far, __shfl_up_sync(ALL_LANES, largest, 1));
    if (lane == 0) before = so_far;
    for (int i = 0; i < LANE_JOINTS; ++i) {
        float both = fmaxf(before, numbers[i].x);
        joints[LANE_JOINTS * lane + i] = joint_of(before, numbers[i].x, both);
        totals[LANE_JOINTS * lane + i] = numbers[i].y;
        before = both;
    }
    so_far = fmaxf(so_far, __shfl_sync(ALL_LANES, largest, WARP - 1));
}

// Numbers of a lane's splits: from `split` on, of so many.
KESTREL_DEVICE void load_numbers(float2 (&numbers)[LANE_JOINTS], const float2* from, int split, int splits) {
    for (int i = 0; i < LANE_JOINTS; ++i) {
        numbers[i] = make_float2(minus_infinity(), 0.0f);
        if (split + i < splits) numbers[i] = load_written8(from + split + i);
    }
}

// All splits of a head become one, up to 128 features from `first` on, by a warp that waits for no other. What can be
// known before they are all there is found when this is made.
template <int STEP>
struct SplitJoin {
    const float2* numbers;
    const float* from;
    int width, splits, column;
    bool there;

    KESTREL_DEVICE SplitJoin(const CodeAttention& args, const TokenBlock& block, int head, int first)
        : width(block.width), splits(block.last - block.first + 1) {
        int32 first_split = head * gridDim.y + block.first;
        int feature = first + 4 * lane_index();
        numbers = (const float2*)split_numbers(args) + first_split;
        from = args.partials + (int64)first_split * width + feature;
        column = head * width + feature;
        there = feature < width;
    }

    KESTREL_DEVICE void run(const CodeAttention& args, JoinShared& shared) const {
        int lane = lane_index(), warp = warp_index();
        Joint* joints = shared.joints[warp];
        float* totals = shared.totals[warp];
        SplitRing<STEP> ring(shared.slots + warp * SplitRing<STEP>::SIZE, from, there ? splits : 0, width);
        float2 own[LANE_JOINTS];
        load_numbers(own, numbers, LANE_JOINTS * lane, splits);
#pragma unroll 1
        for (int i = 0; i < RING_STEPS; ++i) ring.ask();
        float so_far = minus_infinity(), total = 0.0f, sums[4] = {};
#pragma unroll 1
        for (int split = 0; split < splits; split += STEP) {
            int at = split % JOINTS;
            if (at == 0) {
                __syncwarp();  // all lanes have read what is overwritten now
                find_joints(joints, totals, own, so_far);
                load_numbers(own, numbers, split + JOINTS + LANE_JOINTS * lane, splits);
                __syncwarp();
            }
            wait_copies<RING_STEPS - 1>();
            Joint joint[STEP];
            float weights[STEP];
            float4 more[STEP];
            for (int i = 0; i < STEP; ++i) {  // beyond the last one it is something or other
                joint[i] = joints[at + i];
                weights[i] = totals[at + i];
                more[i] = ring.slots[ring.slot + i][lane];
            }
            for (int i = 0; i < STEP; ++i) {
                if (split + i >= splits) continue;
                total = joint[i].join(total, weights[i]);
                sums[0] = joint[i].join(sums[0], more[i].x);
                sums[1] = joint[i].join(sums[1], more[i].y);
                sums[2] = joint[i].join(sums[2], more[i].z);
                sums[3] = joint[i].join(sums[3], more[i].w);
            }
            ring.ask();
        }
        float part = 1.0f / total;
        for (int i = 0; i < 4; ++i) sums[i] *= part;
        store_four(args.out, 0, column, there, sums);
    }
};

// The last block of a head to arrive puts the splits together. STEP: one for which the ring has room.
template <int PIECES, int STEP>
KESTREL_DEVICE void join_at_last(const CodeAttention& args, const TokenBlock& block, JoinShared& shared) {
    __shared__ uint32 arrived;
    uint32 others = block.last - block.first;
    int chunks = PIECES == 1 ? 1 : (block.width + CHUNK - 1) / CHUNK, jobs = block.group * chunks;
    int head = block.kv_head * block.group, job = warp_index();
    SplitJoin<STEP> join(args, block, head + job / chunks, job % chunks * CHUNK);
    __syncthreads();
    if (threadIdx.x == 0) arrived = count_arrival(args.arrivals + block.kv_head, others);
    __syncthreads();
    if (arrived != others) return;
#pragma unroll 1
    while (job < jobs) {
        join.run(args, shared);
        job += SPLIT_WARPS;
        if (PIECES == 1) return;
        join = SplitJoin<STEP>(args, block, head + job / chunks, job % chunks * CHUNK);
    }
}
