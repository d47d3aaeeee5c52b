// Which experts a token takes, from the router's logits.
#pragma once

#include "card.cuh"

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

struct Routing {  // of one token, in shared memory
    float probabilities[MOST_EXPERTS];
    int experts[MOST_CHOSEN];
    float weights[MOST_CHOSEN];
};

// By one warp. Of equal probabilities the expert with the lower number is taken.
KESTREL_DEVICE void route_token(const Route& args, int64 token, Routing& shared) {
    const float* logits = args.logits + token * args.count;
    float largest = __uint_as_float(0xff800000u);
    for (int i = lane_index(); i < args.count; i += WARP) largest = fmaxf(largest, load_written(logits + i));
    largest = warp_max(largest);
    float total = 0.0f;
    for (int i = lane_index(); i < args.count; i += WARP) {
        shared.probabilities[i] = expf(load_written(logits + i) - largest);
        total += shared.probabilities[i];
    }
    total = warp_sum(total);
    for (int i = lane_index(); i < args.count; i += WARP) shared.probabilities[i] /= total;
    __syncwarp();
    float sum = 0.0f;
    for (int choice = 0; choice < args.chosen; ++choice) {
        float best = -1.0f;
        int expert = args.count;
        for (int i = lane_index(); i < args.count; i += WARP) {
            float key = shared.probabilities[i] == shared.probabilities[i] ? shared.probabilities[i] : 2.0f;  // what is no number is told on
            if (key > best) best = key, expert = i;
        }
        for (int distance = WARP / 2; distance > 0; distance /= 2) {
            float other = __shfl_xor_sync(ALL_LANES, best, distance);
            int other_expert = __shfl_xor_sync(ALL_LANES, expert, distance);
            if (other > best || (other == best && other_expert < expert)) best = other, expert = other_expert;
        }
        float weight = shared.probabilities[expert];
        sum += weight;
        __syncwarp();
        if (lane_index() == 0) {
            shared.experts[choice] = expert;
            shared.weights[choice] = weight;
            shared.probabilities[expert] = -2.0f;
        }
        __syncwarp();
    }
    for (int i = lane_index(); i < args.chosen; i += WARP) {
        int rank = 0;
        for (int j = 0; j < args.chosen; ++j) rank += shared.experts[j] < shared.experts[i];
        int64 at = token * args.chosen + rank;
        args.experts[at] = shared.experts[i];
        args.weights[at] = args.normalises ? shared.weights[i] / sum : shared.weights[i];
    }
}
