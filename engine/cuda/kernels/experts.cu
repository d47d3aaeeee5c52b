// What a token's experts say together.
#include "route.cuh"

static const int MIX_THREADS = 256;

struct Mixture {
    const float* y;        // (T * k, H)
    const float* weights;  // (T, k)
    float* hidden;         // (T, H), which is added to
    int32 width;           // H
    int32 chosen;          // k
};

// Experts add up in ascending order. blockIdx.y is the token.
//
// What is behind this launch reads nothing before its own wait but weights: so it may begin before this one's is over.
// Before that this one reads what was there when the last product began.
KESTREL_KERNEL(mix_experts, MIX_THREADS, Mixture) {
    __shared__ float weights[MOST_CHOSEN];
    let_next_start();
    int column = blockIdx.x * MIX_THREADS + threadIdx.x;
    int64 token = blockIdx.y, first = token * args.chosen;
    if (threadIdx.x < args.chosen) weights[threadIdx.x] = args.weights[first + threadIdx.x];
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
