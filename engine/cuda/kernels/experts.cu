// What a token's experts say together.
#include "route.cuh"

static const int MIX_THREADS = 256;

struct Mixture {
    const float* y;        // (T * k, H)
    const float* weights;  // (T, k); null: of one token they are found here
    const float* logits;   // (E,) of its router, from which they are, a single list of route.cuh
    float* hidden;         // (T, H), which is added to
    int32 width;           // H
    int32 chosen;          // k
    int32 count;           // E
    int32 normalises;      // as in a Route
};

// Experts add up in ascending order. blockIdx.y is the token.
//
// What is behind this launch reads nothing before its own wait but weights: so it may begin before this one's is over.
// Before that this one reads what was there when the last product began, and chooses while that is made.
KESTREL_KERNEL(mix_experts, MIX_THREADS, Mixture) {
    __shared__ float weights[MOST_CHOSEN];
    __shared__ ListChoice choice;
    let_next_start();
    int column = blockIdx.x * MIX_THREADS + threadIdx.x;
    int64 token = blockIdx.y, first = token * args.chosen;
    if (args.weights != nullptr) {
        if (threadIdx.x < args.chosen) weights[threadIdx.x] = args.weights[first + threadIdx.x];
    } else if (__shfl_sync(ALL_LANES, warp_index(), 0) == 0) {
        choice.choose(args.logits, args.count, args.chosen, [](int, int) {});
#pragma unroll 1
        for (int i = lane_index(); i < args.chosen; i += WARP)
            weights[i] = choice.weight(i, args.chosen, args.normalises);
    }
    bool there = column < args.width;
    float *hidden = args.hidden + token * args.width + column, before = there ? load_global4(hidden) : 0.0f, sum = 0.0f;
    __syncthreads();
    wait_for_previous();
    if (!there) return;
    const float* y = args.y + first * args.width + column;
#pragma unroll 8
    for (int i = 0; i < args.chosen; ++i) sum = fmaf(weights[i], y[(int64)i * args.width], sum);
    *hidden = before + sum;
}
