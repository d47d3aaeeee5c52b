// A mixture of experts: which a token takes, and what they say together.
#include "card.cuh"

static const int ROUTE_THREADS = 32;
static const int MIX_THREADS = 256;
static const int MOST_EXPERTS = 1024;
static const int MOST_CHOSEN = 64;

struct Route {
    const float* logits;  // (T, E)
    int32* experts;       // (T, k), ascending
    float* weights;       // (T, k), of the same
    int32 count;          // E
    int32 chosen;         // k
    int32 normalises;     // whether weights add up to 1
    int32 padding;
};

// One warp a token. Of equal probabilities the expert with the lower number is taken.
KESTREL_KERNEL(route, ROUTE_THREADS, Route) {
    __shared__ float probabilities[MOST_EXPERTS];
    __shared__ int experts[MOST_CHOSEN];
    __shared__ float weights[MOST_CHOSEN];
    wait_for_previous();
    let_next_start();
    const float* logits = args.logits + (int64)blockIdx.x * args.count;
    float largest = __uint_as_float(0xff800000u);
    for (int i = lane_index(); i < args.count; i += WARP) largest = fmaxf(largest, logits[i]);
    largest = warp_max(largest);
    float total = 0.0f;
    for (int i = lane_index(); i < args.count; i += WARP) {
        probabilities[i] = expf(logits[i] - largest);
        total += probabilities[i];
    }
    total = warp_sum(total);
    for (int i = lane_index(); i < args.count; i += WARP) probabilities[i] /= total;
    __syncwarp();
    float sum = 0.0f;
    for (int choice = 0; choice < args.chosen; ++choice) {
        float best = -1.0f;
        int expert = args.count;
        for (int i = lane_index(); i < args.count; i += WARP) {
            float key = probabilities[i] == probabilities[i] ? probabilities[i] : 2.0f;  // what is no number is told on
            if (key > best) best = key, expert = i;
        }
        for (int distance = WARP / 2; distance > 0; distance /= 2) {
            float other = __shfl_xor_sync(ALL_LANES, best, distance);
            int other_expert = __shfl_xor_sync(ALL_LANES, expert, distance);
            if (other > best || (other == best && other_expert < expert)) best = other, expert = other_expert;
        }
        float weight = probabilities[expert];
        sum += weight;
        __syncwarp();
        if (lane_index() == 0) {
            experts[choice] = expert;
            weights[choice] = weight;
            probabilities[expert] = -2.0f;
        }
        __syncwarp();
    }
    for (int i = lane_index(); i < args.chosen; i += WARP) {
        int rank = 0;
        for (int j = 0; j < args.chosen; ++j) rank += experts[j] < experts[i];
        int64 at = (int64)blockIdx.x * args.chosen + rank;
        args.experts[at] = experts[i];
        args.weights[at] = args.normalises ? weights[i] / sum : weights[i];
    }
}

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
