// Which experts a token takes, from the router's logits.
#pragma once

#include "card.cuh"

static const int MOST_EXPERTS = 1024;
static const int MOST_CHOSEN = 64;
static const int LANE_EXPERTS = 4;  // next to each other
static const int LIST_EXPERTS = LANE_EXPERTS * WARP;
static const int MOST_LISTS = MOST_EXPERTS / LIST_EXPERTS;
static const int ROUTE_THREADS = MOST_LISTS * WARP;  // that a block must have, or more

struct Route {
    const float* logits;  // (T, E)
    int32* experts;       // (T, k), ascending
    float* weights;       // (T, k), of the same
    int32 count;          // E
    int32 chosen;         // k
    int32 normalises;     // whether weights add up to 1
    int32 padding;
};

// An expert that may be taken. The higher the key, the rather: bits of its probability, and the highest one is set.
struct Candidate {
    uint32 key;
    int32 expert;

    KESTREL_DEVICE float weight() const { return __uint_as_float(key & 0x7fffffffu); }
};

struct Routing {  // of one token, in shared memory
    float parts[2][MOST_LISTS];                  // of each list: the largest logit, the sum
    Candidate lists[MOST_LISTS][MOST_CHOSEN];    // each with the best first
    Candidate best[MOST_CHOSEN];                 // of all lists, likewise
};

// Unsigned numbers in the order of these, which are no NaN.
KESTREL_DEVICE uint32 ordered_bits(float value) {
    uint32 bits = __float_as_uint(value), sign = 0x80000000u;
    return bits & sign ? ~bits : bits | sign;
}

KESTREL_DEVICE float from_ordered_bits(uint32 ordered) {
    uint32 sign = 0x80000000u;
    return __uint_as_float(ordered & sign ? ordered & ~sign : ~ordered);
}

// By a warp: takes the best `chosen` of its lanes' experts out, one after the other. Of equal keys that of the lowest
// lane, and there the first one.
KESTREL_DEVICE void list_best(uint32 (&keys)[LANE_EXPERTS], int first, int chosen, Candidate* list) {
    uint32 lower = (1u << lane_index()) - 1;
#pragma unroll 1
    for (int choice = 0; choice < chosen; ++choice) {
        uint32 best = max(max(keys[0], keys[1]), max(keys[2], keys[3]));
        int at = 3;
        if (keys[2] == best) at = 2;
        if (keys[1] == best) at = 1;
        if (keys[0] == best) at = 0;
        bool has_it = best == warp_max_bits(best);
        bool is_it = (__ballot_sync(ALL_LANES, has_it) & lower) == 0 && has_it;
        if (is_it) list[choice] = {best, first + at};
        keys[0] = is_it && at == 0 ? 0 : keys[0], keys[1] = is_it && at == 1 ? 0 : keys[1];
        keys[2] = is_it && at == 2 ? 0 : keys[2], keys[3] = is_it && at == 3 ? 0 : keys[3];
    }
}

// By a block: the best of several lists, of which an earlier one has lower experts.
KESTREL_DEVICE void join_lists(Routing& shared, int lists, int chosen) {
#pragma unroll 1
    for (int i = threadIdx.x; i < lists * chosen; i += ROUTE_THREADS) {
        int own = i / chosen, rank = 0;
        Candidate mine = shared.lists[own][i % chosen];
#pragma unroll 1
        for (int list = 0; list < lists; ++list)
#pragma unroll 1
            for (int j = 0; j < chosen; ++j) {
                uint32 key = shared.lists[list][j].key;
                bool is_before = list < own || (list == own && j < i % chosen);
                rank += key > mine.key || (key == mine.key && is_before);
            }
        if (rank < chosen) shared.best[rank] = mine;
    }
}

// By a block, all of it. Of equal probabilities the expert with the lower number is taken. Where a logit is no number,
// or all are minus infinity, no probability is a number: the first experts are taken, and their weights tell.
//
// Lists hold 128 experts each, so most models have one, and what follows is then the work of one warp, without a
// barrier.
KESTREL_DEVICE void route_token(const Route& args, int64 token, Routing& shared) {
    int lists = (args.count + LIST_EXPERTS - 1) / LIST_EXPERTS, warp = warp_index(), lane = lane_index();
    int first = warp * LIST_EXPERTS + lane * LANE_EXPERTS, chosen = args.chosen;
    if (lists == 1 && warp > 0) return;
    const float* logits = args.logits + token * args.count + first;
    float powers[LANE_EXPERTS], largest = __uint_as_float(0xff800000u), total = 0.0f;
    for (int i = 0; i < LANE_EXPERTS; ++i) {
        powers[i] = __uint_as_float(0xff800000u);
        if (first + i < args.count) powers[i] = load_written(logits + i);
    }
    for (int i = 0; i < LANE_EXPERTS; ++i) largest = fmaxf(largest, powers[i]);
    largest = from_ordered_bits(warp_max_bits(ordered_bits(largest)));
    if (lists > 1) {
        if (lane == 0 && warp < lists) shared.parts[0][warp] = largest;
        __syncthreads();
#pragma unroll 1
        for (int list = 0; list < lists; ++list) largest = fmaxf(largest, shared.parts[0][list]);
    }
    for (int i = 0; i < LANE_EXPERTS; ++i) {
        powers[i] = expf(powers[i] - largest);
        total += powers[i];
    }
    total = warp_sum(total);
    if (lists > 1) {
        if (lane == 0 && warp < lists) shared.parts[1][warp] = total;
        __syncthreads();
        total = 0.0f;
#pragma unroll 1
        for (int list = 0; list < lists; ++list) total += shared.parts[1][list];
    }
    uint32 keys[LANE_EXPERTS];
    float part = 1.0f / total;
    for (int i = 0; i < LANE_EXPERTS; ++i) {
        float probability = powers[i] * part;
        uint32 bits = probability == probability ? __float_as_uint(probability) : 0x7fc00000u;
        keys[i] = first + i < args.count ? bits | 0x80000000u : 1;
    }
    const Candidate* best = shared.lists[0];
    if (warp < lists) list_best(keys, first, chosen, shared.lists[warp]);
    __syncwarp();
    if (lists > 1) {
        __syncthreads();
        join_lists(shared, lists, chosen);
        __syncthreads();
        best = shared.best;
    }
    if (warp > 0) return;
#pragma unroll 1
    for (int i = lane; i < chosen; i += WARP) {
        int rank = 0, expert = best[i].expert;
        float sum = 0.0f, weight = best[i].weight();
#pragma unroll 4
        for (int j = 0; j < chosen; ++j) {
            sum += best[j].weight();
            rank += best[j].expert < expert;
        }
        int64 at = token * chosen + rank;
        args.experts[at] = expert;
        args.weights[at] = args.normalises ? weight / sum : weight;
    }
}
