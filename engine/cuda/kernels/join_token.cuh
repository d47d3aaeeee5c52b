// One token's splits become one: what a block of `attend_token` is about, and how the last blocks of a head of keys and
// values to arrive put together what all of them have left. As many do that as it has query heads, one of these each:
// a single one would wait for all of it to be fetched by one processor. Those that aren't the very last one wait for it.
// Blocks that haven't begun need room meanwhile, so not more may wait than `joining` of the arguments allows.
#pragma once

#include "attention_codes.cuh"

static const int HEAD_SET = 8;  // query heads at once: bytes of theirs and of what is left fill a tile
static_assert(CHUNK == 4 * WARP && HEAD_SET <= SPLIT_WARPS, "a warp has a head's chunk, four features a lane");

static const int LANE_JOINTS = 2;              // splits next to each other
static const int JOINTS = LANE_JOINTS * WARP;  // so many are put together at once

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
        int earlier = earlier_split(args);
        split = (int)blockIdx.y == own_place(args) ? last : earlier < last ? earlier : last + 1;
        start = split * SPLIT;
        warps = min(SPLIT_WARPS, (position - start) / WARP_TOKENS + 1);
    }

    // Which block has the token's own split: it begins before those of earlier ones. What may not be there at all is the
    // half that comes last, or, where the next launch may begin once all blocks have begun, first: so that none of them has
    // to wait for others to end before it begins and ends at once.
    KESTREL_DEVICE static int own_place(const CodeAttention& args) {
        return args.lets_early ? max((int)gridDim.y / 2 - 1, 0) : 0;
    }

    // Which of the others it has, if that is there.
    KESTREL_DEVICE static int earlier_split(const CodeAttention& args) {
        int place = blockIdx.y, from_end = (int)gridDim.y - 1 - place;
        if (args.lets_early) return place <= own_place(args) ? max(from_end - 1, 0) : from_end;
        return max(place - 1, 0);
    }

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

// What there is in shared memory when splits are put together: of splits that follow each other, sums of a head's
// chunk, four features a lane, and sums of weights.
struct JoinShared {
    float4 sums[JOINTS][WARP];
    Joint joints[JOINTS];
    float totals[JOINTS];
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

// All splits of a head become one, up to 128 features from `first` on, by a block. Little text does that: most
// processors come to it so rarely that they have to fetch it first.
KESTREL_DEVICE void join_head(
    const CodeAttention& args, const TokenBlock& block, int head, int first, JoinShared& shared
) {
    int splits = block.last - block.first + 1, width = block.width, warp = warp_index(), lane = lane_index();
    int32 first_split = head * gridDim.y + block.first;
    const float2* numbers = (const float2*)split_numbers(args) + first_split;
    const float* from = args.partials + (int64)first_split * width + first + 4 * lane;
    int feature = first + threadIdx.x;  // of this thread, in the end
    float so_far = minus_infinity(), total = 0.0f, sum = 0.0f;
#pragma unroll 1
    for (int start = 0; start < splits; start += JOINTS) {
        int count = min(JOINTS, splits - start);
        if (start > 0) __syncthreads();  // all have read what is overwritten now
#pragma unroll 1
        for (int i = warp; i < count; i += SPLIT_WARPS)
            if (first + 4 * lane < width) copy_async16(&shared.sums[i][lane], from + (start + i) * width);
        commit_copies();
        if (warp == 0) {
            float2 own[LANE_JOINTS];
            load_numbers(own, numbers, start + LANE_JOINTS * lane, splits);
            find_joints(shared.joints, shared.totals, own, so_far);
        }
        wait_copies<0>();
        __syncthreads();
        if (threadIdx.x >= CHUNK || feature >= width) continue;
#pragma unroll 4
        for (int i = 0; i < count; ++i) {
            Joint joint = shared.joints[i];
            total = joint.join(total, shared.totals[i]);
            sum = joint.join(sum, ((const float*)shared.sums[i])[threadIdx.x]);
        }
    }
    if (threadIdx.x < CHUNK && feature < width)
        store_activation(args.out, 0, head * width + feature, sum * (1.0f / total));
}

// Each of the last blocks to arrive has a query head, or a chunk of one, and further ones where there are more of these
// than blocks that may join. Behind a barrier.
template <int PIECES>
KESTREL_DEVICE void join_at_last(const CodeAttention& args, const TokenBlock& block, JoinShared& shared) {
    __shared__ int arrived;
    int splits = block.last - block.first + 1;
    int chunks = PIECES == 1 ? 1 : (block.width + CHUNK - 1) / CHUNK, jobs = block.group * chunks;
    int joining = min(min(jobs, splits), args.joining), head = block.kv_head * block.group;
    uint32* arrivals = args.arrivals + block.kv_head;
    if (threadIdx.x == 0) {
        int before = (int)count_arrival(arrivals, splits - 1);
        if (before >= splits - joining && before < splits - 1) wait_until_all(arrivals);
        arrived = before;
    }
    __syncthreads();
    int job = arrived - (splits - joining);
    if (job < 0) return;
#pragma unroll 1
    for (;;) {
        join_head(args, block, head + job / chunks, job % chunks * CHUNK, shared);
        job += joining;
        if (job >= jobs) return;
        __syncthreads();  // all have read what is overwritten now
    }
}
