// What a token's experts say together.
#include "card.cuh"

static const int MIX_THREADS = 256;

struct Mixture {
    const float* y;        // (T * k, H)
    const float* weights;  // (T, k)
    float* hidden;         // (T, H), which is added to
    int32 width;           // H
    int32 chosen;          // k
};

// Experts add up in ascending order. blockIdx.y is the token.
KESTREL_KERNEL(mix_experts, MIX_THREADS, Mixture) {
    wait_for_previous();
    let_next_start();
    int column = blockIdx.x * MIX_THREADS + threadIdx.x;
    if (column >= args.width) return;
    int64 token = blockIdx.y;
    float sum = 0.0f;
    for (int i = 0; i < args.chosen; ++i) {
        int64 row = token * args.chosen + i;
        sum = fmaf(args.weights[row], args.y[row * args.width + column], sum);
    }
    args.hidden[token * args.width + column] += sum;
}
