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
};

KESTREL_DEVICE float weight_of_key(uint32 key) { return __uint_as_float(key & 0x7fffffffu); }

// Unsigned numbers in the order of these, which are no NaN.
KESTREL_DEVICE uint32 ordered_bits(float value) {
    uint32 bits = __float_as_uint(value), sign = 0x80000000u;
    return bits & sign ? ~bits : bits | sign;
}

KESTREL_DEVICE float from_ordered_bits(uint32 ordered) {
    uint32 sign = 0x80000000u;
    return __uint_as_float(ordered & sign ? ordered & ~sign : ~ordered);
}

// What a lane has of a list, from its first expert on: logits, of which there are `left`, then powers, then keys.
struct LaneExperts {
    float powers[LANE_EXPERTS];
    uint32 keys[LANE_EXPERTS];
    int left;

    KESTREL_DEVICE LaneExperts(const float* logits, int first, int count) : left(count - first) {
        for (int i = 0; i < LANE_EXPERTS; ++i) powers[i] = __uint_as_float(0xff800000u);
        if (count % LANE_EXPERTS == 0 && left > 0) {
            float4 four = load_written16(logits + first);
            powers[0] = four.x, powers[1] = four.y, powers[2] = four.z, powers[3] = four.w;
        } else {
            for (int i = 0; i < LANE_EXPERTS; ++i)
                if (i < left) powers[i] = load_written(logits + first + i);
        }
    }

    // Of the list.
    KESTREL_DEVICE float largest() const {
        float largest = __uint_as_float(0xff800000u);
        for (int i = 0; i < LANE_EXPERTS; ++i) largest = fmaxf(largest, powers[i]);
        return from_ordered_bits(warp_max_bits(ordered_bits(largest)));
    }

    // Returns the list's sum of them.
    KESTREL_DEVICE float make_powers(float largest) {
        float total = 0.0f;
        for (int i = 0; i < LANE_EXPERTS; ++i) {
            powers[i] = expf(powers[i] - largest);
            total += powers[i];
        }
        return warp_sum(total);
    }

    KESTREL_DEVICE void make_keys(float total) {
        float part = 1.0f / total;
        for (int i = 0; i < LANE_EXPERTS; ++i) {
            float probability = powers[i] * part;
            uint32 bits = probability == probability ? __float_as_uint(probability) : 0x7fc00000u;
            keys[i] = i < left ? bits | 0x80000000u : 1;
        }
    }
};

// By a warp: takes the best `chosen` of its lanes' experts out, one after the other: their keys are 0 then. Of equal keys
// that of the lowest lane, and there the first one. note(i, key, at): by the lane whose expert `at` is the i-th best.
template <typename Note>
KESTREL_DEVICE void take_best(uint32 (&keys)[LANE_EXPERTS], int chosen, Note note) {
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
        if (is_it) note(choice, best, at);
        keys[0] = is_it && at == 0 ? 0 : keys[0], keys[1] = is_it && at == 1 ? 0 : keys[1];
        keys[2] = is_it && at == 2 ? 0 : keys[2], keys[3] = is_it && at == 3 ? 0 : keys[3];
    }
}

// By a warp: the key of the last of the best `chosen`, if no two lanes have equal keys down to there; else a lower one.
// note(i, key): by the first lane, of the i-th best, likewise. Each turn takes the best key out of all lanes that have
// it: one reduction and a comparison, since nobody has to find out which of them is the first.
template <typename Note>
KESTREL_DEVICE uint32 key_of_last(const uint32 (&keys)[LANE_EXPERTS], int chosen, Note note) {
    uint32 high[2] = {max(keys[0], keys[1]), max(keys[2], keys[3])};
    uint32 low[2] = {min(keys[0], keys[1]), min(keys[2], keys[3])};
    uint32 inner[2] = {min(high[0], high[1]), max(low[0], low[1])};
    uint32 first = max(high[0], high[1]), second = max(inner[0], inner[1]);
    uint32 third = min(inner[0], inner[1]), fourth = min(low[0], low[1]), best = 0;
#pragma unroll 4
    for (int choice = 0; choice < chosen; ++choice) {
        best = warp_max_bits(first);
        if (lane_index() == 0) note(choice, best);
        bool has_it = first == best;
        first = has_it ? second : first, second = has_it ? third : second;
        third = has_it ? fourth : third, fourth = has_it ? 0 : fourth;
    }
    return best;
}

// Which of a lane's experts are taken, and how many of lower lanes'.
struct Taken {
    bool is[LANE_EXPERTS];
    int before, all;

    template <typename Test>
    KESTREL_DEVICE explicit Taken(Test test) : before(0), all(0) {
        uint32 lower = (1u << lane_index()) - 1;
        for (int i = 0; i < LANE_EXPERTS; ++i) {
            is[i] = test(i);
            uint32 lanes = __ballot_sync(ALL_LANES, is[i]);
            before += __popc(lanes & lower), all += __popc(lanes);
        }
    }
};

// By a warp: which `chosen` experts a token takes, where all of them are a single list; in registers, without a barrier.
// note(i, key): of the i-th best; the last word of it counts. take(at, expert, key): of those taken, in ascending order.
template <typename Note, typename Take>
KESTREL_DEVICE void choose_of_list(const float* logits, int count, int chosen, Note note, Take take) {
    int first = lane_index() * LANE_EXPERTS;
    LaneExperts mine(logits, first, count);
    mine.make_keys(mine.make_powers(mine.largest()));
    uint32 keys[LANE_EXPERTS];
    for (int i = 0; i < LANE_EXPERTS; ++i) keys[i] = mine.keys[i];
    uint32 last = key_of_last(keys, chosen, note);
    Taken taken([&](int i) { return keys[i] >= last; });
    if (taken.all != chosen) {  // some are equal
        __syncwarp();  // what was noted is noted anew by others
        take_best(keys, chosen, [&](int i, uint32 key, int) { note(i, key); });
        taken = Taken([&](int i) { return keys[i] == 0; });
    }
    int at = taken.before;
    for (int i = 0; i < LANE_EXPERTS; ++i) {
        if (taken.is[i]) take(at, first + i, mine.keys[i]);
        at += taken.is[i];
    }
}

// What a warp chooses so, with its weights.
struct ListChoice {
    uint32 best[MOST_CHOSEN];       // keys, the best first
    uint32 ascending[MOST_CHOSEN];  // keys in the order of experts

    // take(at, expert): of those taken.
    template <typename Take>
    KESTREL_DEVICE void choose(const float* logits, int count, int chosen, Take take) {
        auto note = [&](int i, uint32 key) { best[i] = key; };
        choose_of_list(logits, count, chosen, note, [&](int at, int expert, uint32 key) {
            ascending[at] = key;
            take(at, expert);
        });
        __syncwarp();
    }

    KESTREL_DEVICE float weight(int at, int chosen, bool normalises) const {
        float sum = 0.0f, weight = weight_of_key(ascending[at]);
#pragma unroll 4
        for (int i = 0; i < chosen; ++i) sum += weight_of_key(best[i]);
        return normalises ? weight / sum : weight;
    }
};

struct Routing {  // of one token, in shared memory
    float parts[2][MOST_LISTS];                  // of each list: the largest logit, the sum
    Candidate lists[MOST_LISTS][MOST_CHOSEN];    // each with the best first
    Candidate best[MOST_CHOSEN];                 // of all lists, likewise
    ListChoice of_list;                          // where there is one
};

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

// By a block, of experts that are several lists: each is the work of a warp.
KESTREL_DEVICE void route_lists(const Route& args, int lists, int64 token, Routing& shared) {
    int warp = warp_index(), lane = lane_index(), chosen = args.chosen;
    int first = warp * LIST_EXPERTS + lane * LANE_EXPERTS;
    LaneExperts mine(args.logits + token * args.count, first, args.count);
    float largest = mine.largest();
    if (lane == 0 && warp < lists) shared.parts[0][warp] = largest;
    __syncthreads();
#pragma unroll 1
    for (int list = 0; list < lists; ++list) largest = fmaxf(largest, shared.parts[0][list]);
    float total = mine.make_powers(largest);
    if (lane == 0 && warp < lists) shared.parts[1][warp] = total;
    __syncthreads();
    total = 0.0f;
#pragma unroll 1
    for (int list = 0; list < lists; ++list) total += shared.parts[1][list];
    mine.make_keys(total);
    if (warp < lists) {
        Candidate* own = shared.lists[warp];
        take_best(mine.keys, chosen, [&](int i, uint32 key, int at) { own[i] = {key, first + at}; });
    }
    __syncthreads();
    join_lists(shared, lists, chosen);
    __syncthreads();
    if (warp > 0) return;
    const Candidate* best = shared.best;
#pragma unroll 1
    for (int i = lane; i < chosen; i += WARP) {
        int rank = 0, expert = best[i].expert;
        float sum = 0.0f, weight = weight_of_key(best[i].key);
#pragma unroll 4
        for (int j = 0; j < chosen; ++j) {
            sum += weight_of_key(best[j].key);
            rank += best[j].expert < expert;
        }
        int64 at = token * chosen + rank;
        args.experts[at] = expert;
        args.weights[at] = args.normalises ? weight / sum : weight;
    }
}

// By a block, all of it. Of equal probabilities the expert with the lower number is taken. Where a logit is no number,
// or all are minus infinity, no probability is a number: the first experts are taken, and their weights tell.
//
// Lists hold 128 experts each, so most models have one, and that is the work of one warp, without a barrier.
KESTREL_DEVICE void route_token(const Route& args, int64 token, Routing& shared) {
    int lists = (args.count + LIST_EXPERTS - 1) / LIST_EXPERTS;
    if (lists > 1) return route_lists(args, lists, token, shared);
    if (warp_index() > 0) return;
    int32* experts = args.experts + token * args.chosen;
    float* weights = args.weights + token * args.chosen;
    const float* logits = args.logits + token * args.count;
    shared.of_list.choose(logits, args.count, args.chosen, [&](int at, int expert) { experts[at] = expert; });
#pragma unroll 1
    for (int i = lane_index(); i < args.chosen; i += WARP)
        weights[i] = shared.of_list.weight(i, args.chosen, args.normalises);
}
