// One draw from the logits of a step's last token: the steps of engine/sampling.py, with the same result. What is drawn
// goes to where the next step finds it, and to the host, which waits for nothing else.
//
// The first kernel looks at all logits; its last block ends a greedy draw, or one from what is no number. Otherwise the
// second one counts scores by their first bits, and its last block goes on alone with those that may matter: a few,
// unless somebody draws from a very flat distribution.
#include "step.cuh"
#include "weigh.cuh"

static const int SCAN_THREADS = 256;
static const int SCAN_EACH = 4;
static const int CHOOSE_THREADS = 512;
static const int CHOOSE_WARPS = CHOOSE_THREADS / WARP;
static const int GROUP = 128;            // neighbours of which the nearest key is kept
static const int COARSE = 2048;          // the first 11 of a key's 31 bits, then twice 10
static const int FINE = 1024;
static const int GATHERED = 2048;        // candidates that have room in shared memory
static const int RESULTS = 4;            // that the host may still have to read
static const uint32 WHOLE = 0x80000000u; // above every key but NO_KEY

struct Drawn {   // what the host reads
    int64 index;
    int32 token;
    int32 fault;  // whether there was something that is no finite number
};

// One answer's draws: settings as in SamplingParams, and what has been drawn.
struct Draw {
    uint64 seed;
    uint64 index;         // of the next token
    Drawn* results;       // RESULTS of them, in the host's memory
    double top_p;         // 1: off
    uint64 least_weight;  // of a token, by min-p
    float temperature;
    float penalty;        // 1: off
    int32 top_k;          // 0: off
    int32 is_greedy;

    // Behind it: a bit for each id, whether it is in prompt or answer.
    KESTREL_DEVICE uint32* seen() { return (uint32*)(this + 1); }
};

// What a step of one token is made of, and its draw.
struct Turn {
    Draw* draw;
    int32 token;
    int32 padding;
    Step step;
};

struct Best {
    float value;
    int32 id;
    int32 fault;
    int32 padding;
};

// All zeros before the first draw.
struct DrawScratch {
    uint32 scanned;  // blocks that are done
    uint32 counted;
    int32 left;      // whether there is something to choose from
    float largest;
    uint64 weights[COARSE];
    uint32 counts[COARSE];
};

struct Draws {
    Draw* const* draw;   // whose turn it is; null: nothing happens
    Turn* turn;
    const float* logits;  // (V,)
    DrawScratch* scratch;
    Best* best;           // of each block
    uint32* keys;         // (V,)
    uint32* nearest;      // (V / GROUP,)
    int32 vocabulary;     // V
    int32 rows;           // tokens of the step
};

// What other blocks of the same kernel wrote.
template <typename T>
KESTREL_DEVICE T fresh(const T* address) { return *(const volatile T*)address; }

// Whether all other blocks of the grid came here before. Afterwards the counter is 0 again.
KESTREL_DEVICE bool comes_last(uint32* counter, int32* shared_flag) {
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        *shared_flag = atomicAdd(counter, 1u) == gridDim.x - 1;
        if (*shared_flag) *counter = 0;
    }
    __syncthreads();
    __threadfence();
    return *shared_flag;
}

KESTREL_DEVICE float penalised(Draw* draw, const float* logits, int id) {
    float value = logits[id];
    if (draw->penalty == 1.0f || !(draw->seen()[id / 32] >> (id % 32) & 1)) return value;
    return value < 0.0f ? value * draw->penalty : value / draw->penalty;
}

// By one thread, when the token is known.
KESTREL_DEVICE void finish_draw(const Draws& args, Draw* draw, int id, bool fault) {
    int token = fault ? 0 : id;
    Drawn* result = draw->results + draw->index % RESULTS;
    result->token = token;
    result->fault = fault;
    result->index = (int64)draw->index;
    draw->index += 1;
    draw->seen()[token / 32] |= 1u << (token % 32);
    args.turn->draw = draw;
    args.turn->token = token;
    args.turn->step.first += args.rows;
    args.scratch->left = 0;
}

KESTREL_DEVICE Best better_of(Best a, Best b) {
    bool second = b.value > a.value || (b.value == a.value && b.id < a.id);
    Best best = second ? b : a;
    best.fault = a.fault | b.fault;
    return best;
}

// Of a block, in thread 0.
KESTREL_DEVICE Best best_of_block(Best best, Best* parts) {
    for (int distance = WARP / 2; distance > 0; distance /= 2) {
        Best other;
        other.value = __shfl_down_sync(ALL_LANES, best.value, distance);
        other.id = __shfl_down_sync(ALL_LANES, best.id, distance);
        other.fault = __shfl_down_sync(ALL_LANES, best.fault, distance);
        best = better_of(best, other);
    }
    if (lane_index() == 0) parts[warp_index()] = best;
    __syncthreads();
    if (threadIdx.x == 0)
        for (int i = 1; i < SCAN_THREADS / WARP; ++i) best = better_of(best, parts[i]);
    __syncthreads();
    return best;
}

KESTREL_DEVICE Best no_best(int vocabulary) {
    Best none;
    none.value = __uint_as_float(0xff800000u);  // minus infinity
    none.id = vocabulary;
    none.fault = 0;
    none.padding = 0;
    return none;
}

KESTREL_KERNEL(scan_logits, SCAN_THREADS, Draws) {
    __shared__ Best parts[SCAN_THREADS / WARP];
    __shared__ int32 is_last;
    wait_for_previous();
    let_next_start();
    Draw* draw = *args.draw;
    if (draw == nullptr) return;
    Best best = no_best(args.vocabulary);
    int first = blockIdx.x * SCAN_THREADS * SCAN_EACH + threadIdx.x;
    for (int i = 0; i < SCAN_EACH; ++i) {
        int id = first + i * SCAN_THREADS;
        if (id >= args.vocabulary) break;
        Best here = no_best(id);
        here.value = penalised(draw, args.logits, id);
        here.fault = !(fabsf(args.logits[id]) <= 3.4028234e38f);
        best = better_of(best, here);
    }
    best = best_of_block(best, parts);
    if (threadIdx.x == 0) args.best[blockIdx.x] = best;
    if (!comes_last(&args.scratch->scanned, &is_last)) return;
    best = no_best(args.vocabulary);
    for (int i = threadIdx.x; i < gridDim.x; i += SCAN_THREADS) {
        Best other = no_best(0);
        other.value = fresh(&args.best[i].value);
        other.id = fresh(&args.best[i].id);
        other.fault = fresh(&args.best[i].fault);
        best = better_of(best, other);
    }
    best = best_of_block(best, parts);
    if (threadIdx.x != 0) return;
    bool fault = best.fault != 0 || !(fabsf(best.value) <= 3.4028234e38f);
    if (fault || draw->is_greedy) {
        finish_draw(args, draw, best.id, fault);
    } else {
        args.scratch->largest = best.value;
        args.scratch->left = 1;
    }
}

// --- choosing -------------------------------------------------------------------------------------------------------

// How many there are of each kind, and what they weigh.
struct Tally {
    uint64 weights[COARSE];
    uint32 counts[COARSE];
};

// Where a running sum over kinds, or over keys, reaches what was asked for: what comes before, and what is there.
struct Reach {
    uint64 weight_before, weight;
    uint32 count_before, count;
    uint32 key;  // or the kind
};

// Candidates, by ascending id.
struct Source {
    const uint32* keys;
    const int32* ids;  // null: each one's place is its id
    int count;

    KESTREL_DEVICE uint32 key(int i) const { return i < count ? fresh(keys + i) : NO_KEY; }
    KESTREL_DEVICE int id(int i) const { return ids != nullptr ? ids[i] : i; }
};

// Which candidates can be drawn: keys below the limit, and of those that equal it the first so many.
struct Rule {
    uint32 limit;
    uint64 ties;
    uint64 least_weight;

    KESTREL_DEVICE uint64 weight(uint32 key, uint64 ties_before) const {
        if (key > limit || (key == limit && ties_before >= ties)) return 0;
        uint64 weight = weight_of(key);
        return weight >= least_weight ? weight : 0;
    }
};

struct Choosing {
    Tally tally;
    uint32 keys[GATHERED];
    int32 ids[GATHERED];
    uint64 parts[CHOOSE_WARPS];
    Reach reach;
    Rule rule;
    int32 is_last;
};

KESTREL_DEVICE uint64 running_sum_of_warp(uint64 sum) {
    for (int distance = 1; distance < WARP; distance *= 2) {
        uint64 below = __shfl_up_sync(ALL_LANES, sum, distance);
        if (lane_index() >= distance) sum += below;
    }
    return sum;
}

// The sum over the threads before this one; `total` is that over all.
KESTREL_DEVICE uint64 sum_before(uint64 value, uint64* parts, uint64* total) {
    uint64 sum = running_sum_of_warp(value);
    if (lane_index() == WARP - 1) parts[warp_index()] = sum;
    __syncthreads();
    if (warp_index() == 0) {
        uint64 part = running_sum_of_warp(lane_index() < CHOOSE_WARPS ? parts[lane_index()] : 0);
        if (lane_index() < CHOOSE_WARPS) parts[lane_index()] = part;
    }
    __syncthreads();
    uint64 before = warp_index() > 0 ? parts[warp_index() - 1] : 0;
    *total = parts[CHOOSE_WARPS - 1];
    __syncthreads();
    return before + sum - value;
}

KESTREL_DEVICE uint32 key_at(const Draws& args, Draw* draw, int id) {
    return key_of((penalised(draw, args.logits, id) - args.scratch->largest) / draw->temperature);
}

// Keys of this block's ids, and the tally of their first bits.
KESTREL_DEVICE void count_keys(const Draws& args, Draw* draw, Tally& tally) {
    for (int i = threadIdx.x; i < COARSE; i += CHOOSE_THREADS) tally.counts[i] = 0, tally.weights[i] = 0;
    __syncthreads();
    int group = blockIdx.x * CHOOSE_WARPS + warp_index();
    uint32 nearest = NO_KEY;
    for (int i = 0; i < GROUP / WARP; ++i) {
        int id = group * GROUP + i * WARP + lane_index();
        if (id >= args.vocabulary) break;
        uint32 key = key_at(args, draw, id);
        args.keys[id] = key;
        nearest = min(nearest, key);
        atomicAdd(&tally.counts[key >> 20], 1u);
        atomicAdd(&tally.weights[key >> 20], weight_of(key));
    }
    for (int distance = WARP / 2; distance > 0; distance /= 2)
        nearest = min(nearest, __shfl_xor_sync(ALL_LANES, nearest, distance));
    if (lane_index() == 0 && group * GROUP < args.vocabulary) args.nearest[group] = nearest;
    __syncthreads();
    for (int i = threadIdx.x; i < COARSE; i += CHOOSE_THREADS) {
        if (tally.counts[i] == 0) continue;
        atomicAdd(&args.scratch->counts[i], tally.counts[i]);
        atomicAdd(&args.scratch->weights[i], tally.weights[i]);
    }
}

// The tally of all blocks, which is emptied for the next draw. Returns the weight of everything.
KESTREL_DEVICE uint64 take_tally(const Draws& args, Choosing& shared) {
    uint64 weight = 0, total;
    for (int i = threadIdx.x; i < COARSE; i += CHOOSE_THREADS) {
        shared.tally.counts[i] = fresh(&args.scratch->counts[i]);
        shared.tally.weights[i] = fresh(&args.scratch->weights[i]);
        weight += shared.tally.weights[i];
        args.scratch->counts[i] = 0;
        args.scratch->weights[i] = 0;
    }
    sum_before(weight, shared.parts, &total);
    return total;
}

KESTREL_DEVICE void begin_search(Choosing& shared) {
    if (threadIdx.x == 0) shared.reach = {0, 0, 0, 0, 0};
    __syncthreads();
}

// Moves shared.reach on: to the first of so many kinds with which count or weight come to `goal`, which is at least 1.
KESTREL_DEVICE void find_kind(Choosing& shared, int kinds, uint64 goal, bool by_weight) {
    int each = kinds / CHOOSE_THREADS, first = threadIdx.x * each;
    uint64 weight = 0, count = 0, total;
    for (int i = first; i < first + each; ++i) weight += shared.tally.weights[i], count += shared.tally.counts[i];
    uint64 weight_before = shared.reach.weight_before, count_before = shared.reach.count_before;
    weight = weight_before + sum_before(weight, shared.parts, &total);
    count = count_before + sum_before(count, shared.parts, &total);
    for (int i = first; i < first + each; ++i) {
        uint64 before = by_weight ? weight : count;
        uint64 here = by_weight ? shared.tally.weights[i] : shared.tally.counts[i];
        if (before < goal && before + here >= goal) {
            shared.reach.weight_before = weight, shared.reach.weight = shared.tally.weights[i];
            shared.reach.count_before = (uint32)count, shared.reach.count = shared.tally.counts[i];
            shared.reach.key = shared.reach.key * FINE + i;
        }
        weight += shared.tally.weights[i];
        count += shared.tally.counts[i];
    }
    __syncthreads();
}

// Has shared.reach be the key with which count or weight of the best come to `goal`.
KESTREL_DEVICE void find_key(const Source& source, Choosing& shared, uint64 goal, bool by_weight) {
    begin_search(shared);
    for (int shift = 20; shift >= 0; shift -= 10) {
        int kinds = shift == 20 ? COARSE : FINE;
        for (int i = threadIdx.x; i < kinds; i += CHOOSE_THREADS)
            shared.tally.counts[i] = 0, shared.tally.weights[i] = 0;
        __syncthreads();
        for (int i = threadIdx.x; i < source.count; i += CHOOSE_THREADS) {
            uint32 key = source.key(i);
            if (shift < 20 && key >> (shift + 10) != shared.reach.key) continue;
            uint32 kind = key >> shift & (kinds - 1);
            atomicAdd(&shared.tally.counts[kind], 1u);
            atomicAdd(&shared.tally.weights[kind], weight_of(key));
        }
        __syncthreads();
        find_kind(shared, kinds, goal, by_weight);
    }
}

// This warp's share of the ids whose keys begin with `kind` or less, from place `at` on. Returns where they end.
KESTREL_DEVICE int gather_share(const Draws& args, Choosing& shared, uint32 kind, int at, bool writes) {
    int groups = (args.vocabulary + GROUP - 1) / GROUP, share = (groups + CHOOSE_WARPS - 1) / CHOOSE_WARPS;
    int end = min(groups, (warp_index() + 1) * share);
    for (int first = warp_index() * share; first < end; first += WARP) {
        int mine = first + lane_index();
        bool is_near = mine < end && fresh(&args.nearest[mine]) >> 20 <= kind;
        for (uint32 near = __ballot_sync(ALL_LANES, is_near); near != 0; near &= near - 1) {
            int start = (first + __ffs((int)near) - 1) * GROUP;
            for (int id = start + lane_index(); id - lane_index() < start + GROUP; id += WARP) {
                uint32 key = id < args.vocabulary ? fresh(&args.keys[id]) : NO_KEY;
                uint32 taken = __ballot_sync(ALL_LANES, key >> 20 <= kind);
                int place = at + __popc(taken & ((1u << lane_index()) - 1));
                if (writes && key >> 20 <= kind) shared.keys[place] = key, shared.ids[place] = id;
                at += __popc(taken);
            }
        }
    }
    return at;
}

KESTREL_DEVICE Source gather(const Draws& args, Choosing& shared, uint32 kind, int count) {
    int found = gather_share(args, shared, kind, 0, false);
    if (lane_index() == 0) shared.parts[warp_index()] = found;
    __syncthreads();
    int at = 0;
    for (int i = 0; i < warp_index(); ++i) at += (int)shared.parts[i];
    gather_share(args, shared, kind, at, true);
    __syncthreads();
    Source source = {shared.keys, shared.ids, count};
    return source;
}

KESTREL_DEVICE uint64 probability_mass(double part, uint64 total) {
    return min((uint64)ceil(part * (double)total), total);
}

// Fills shared.rule. total: the weight of everything.
KESTREL_DEVICE void find_rule(const Draw* draw, const Source& source, Choosing& shared, uint64 total, bool cuts_count) {
    Rule rule = {WHOLE, 0, draw->least_weight};
    if (cuts_count) {
        find_key(source, shared, draw->top_k, false);
        rule.limit = shared.reach.key;
        rule.ties = shared.reach.count;
        total = shared.reach.weight_before + shared.reach.weight;
        __syncthreads();
    }
    if (draw->top_p < 1.0) {
        uint64 mass = probability_mass(draw->top_p, total);
        find_key(source, shared, mass, true);
        uint64 each = weight_of(shared.reach.key);
        rule.limit = shared.reach.key;
        rule.ties = (mass - shared.reach.weight_before + each - 1) / each;
    }
    if (threadIdx.x == 0) shared.rule = rule;
    __syncthreads();
}

// The candidate at which the sum of weights passes `target`, by one warp: within the span that begins at `i`, and with
// what shared.reach says before it.
KESTREL_DEVICE void draw_in_span(
    const Draws& args, const Source& source, const Choosing& shared, int i, uint64 target
) {
    uint64 before = shared.reach.weight_before;
    uint32 ties = shared.reach.count_before;
    for (i += lane_index();; i += WARP) {
        uint32 key = source.key(i), equal = __ballot_sync(ALL_LANES, key == shared.rule.limit);
        uint64 weight = shared.rule.weight(key, ties + __popc(equal & ((1u << lane_index()) - 1)));
        uint64 sum = before + running_sum_of_warp(weight);
        uint32 passed = __ballot_sync(ALL_LANES, sum > target);
        if (passed != 0) {
            if (lane_index() == __ffs((int)passed) - 1) finish_draw(args, *args.draw, source.id(i), false);
            return;
        }
        before = __shfl_sync(ALL_LANES, sum, WARP - 1);
        ties += __popc(equal);
    }
}

KESTREL_DEVICE void draw_one(const Draws& args, const Source& source, Choosing& shared) {
    const Rule& rule = shared.rule;
    int span = (source.count + WARP * CHOOSE_THREADS - 1) / (WARP * CHOOSE_THREADS) * WARP;
    int spans = (source.count + span - 1) / span;
    uint64* sums = shared.tally.weights;  // of each span, ties apart
    uint32* equals = shared.tally.counts;
    for (int number = warp_index(); number < spans; number += CHOOSE_WARPS) {
        uint64 sum = 0;
        uint32 equal = 0;
        for (int i = number * span + lane_index(); i - lane_index() < (number + 1) * span; i += WARP) {
            uint32 key = source.key(i);
            sum += rule.weight(key, rule.ties);
            equal += __popc(__ballot_sync(ALL_LANES, key == rule.limit));
        }
        sum = running_sum_of_warp(sum);
        if (lane_index() == WARP - 1) sums[number] = sum, equals[number] = equal;
    }
    __syncthreads();
    bool mine = (int)threadIdx.x < spans;
    uint64 equal = mine ? equals[threadIdx.x] : 0, total;
    uint64 ties = sum_before(equal, shared.parts, &total);
    uint64 tied = ties < rule.ties ? min(equal, rule.ties - ties) : 0;
    uint64 sum = (mine ? sums[threadIdx.x] : 0) + tied * rule.weight(rule.limit, 0);
    uint64 before = sum_before(sum, shared.parts, &total);
    const Draw* draw = *args.draw;
    uint64 target = __umul64hi(uniform_bits(draw->seed, draw->index) << (64 - UNIFORM_BITS), total);
    if (before <= target && target < before + sum) {
        shared.reach.key = threadIdx.x;
        shared.reach.weight_before = before;
        shared.reach.count_before = (uint32)ties;
    }
    __syncthreads();
    if (warp_index() == 0) draw_in_span(args, source, shared, (int)shared.reach.key * span, target);
}

KESTREL_KERNEL(choose_token, CHOOSE_THREADS, Draws) {
    __shared__ Choosing shared;
    wait_for_previous();
    Draw* draw = *args.draw;
    if (draw == nullptr || !args.scratch->left) return;
    count_keys(args, draw, shared.tally);
    if (!comes_last(&args.scratch->counted, &shared.is_last)) return;
    uint64 total = take_tally(args, shared);
    Source source = {args.keys, nullptr, args.vocabulary};
    bool cuts_count = draw->top_k > 0 && draw->top_k < args.vocabulary;
    if (cuts_count || draw->top_p < 1.0) {
        uint64 goal = cuts_count ? (uint64)draw->top_k : probability_mass(draw->top_p, total);
        begin_search(shared);
        find_kind(shared, COARSE, goal, !cuts_count);
        uint32 kind = shared.reach.key, count = shared.reach.count_before + shared.reach.count;
        __syncthreads();
        if (count <= GATHERED) source = gather(args, shared, kind, (int)count);
    }
    find_rule(draw, source, shared, total, cuts_count);
    draw_one(args, source, shared);
}
