// Rows that take the same expert, together: what comes before a product of rows with experts of their own.
#include "card.cuh"

static const int GROUPING_THREADS = 256;

// A tile of rows is at most `tile_rows` of one expert. Expert e's tiles have numbers from
// (rows of experts below e) / tile_rows + e on, so that nobody has to know how many tiles the others have; of those
// numbers one is left over at most. There are count / tile_rows + num_experts in all.
struct Grouping {
    const int32* experts;  // of each row (count,)
    int32* order;          // rows, by expert, then in their own order (count,)
    int32* tiles;          // expert, first place in `order`, places (0: nothing to do), of each
    int32 count;
    int32 num_experts;
    int32 tile_rows;
    int32 padding;
};

// blockIdx.x: an expert. Each warp looks at an eighth of the rows, twice: how many there are, then where they go.
KESTREL_KERNEL(group_rows, GROUPING_THREADS, Grouping) {
    static const int WARPS = GROUPING_THREADS / WARP;
    __shared__ int lower[WARPS], equal[WARPS];
    wait_for_previous();
    int expert = blockIdx.x, lane = lane_index();
    int share = (args.count + GROUPING_THREADS - 1) / GROUPING_THREADS * WARP;
    int begin = warp_index() * share, end = min(begin + share, args.count);
    int num_lower = 0, num_equal = 0;
    for (int i = begin; i < end; i += WARP) {
        int found = i + lane < end ? args.experts[i + lane] : args.num_experts;
        num_lower += __popc(__ballot_sync(ALL_LANES, found < expert));
        num_equal += __popc(__ballot_sync(ALL_LANES, found == expert));
    }
    if (lane == 0) lower[warp_index()] = num_lower, equal[warp_index()] = num_equal;
    __syncthreads();
    int first = 0, count = 0, place = 0;  // of this expert; this warp's first
    for (int i = 0; i < WARPS; ++i) {
        if (i == warp_index()) place = count;
        first += lower[i], count += equal[i];
    }
    place += first;
    for (int i = begin; i < end && num_equal > 0; i += WARP) {
        bool mine = i + lane < end && args.experts[i + lane] == expert;
        uint32 all = __ballot_sync(ALL_LANES, mine);
        if (mine) args.order[place + __popc(all & ((1u << lane) - 1))] = i + lane;
        place += __popc(all);
    }
    int tile = first / args.tile_rows + expert, after = (first + count) / args.tile_rows + expert + 1;
    for (int i = threadIdx.x; tile + i < after; i += GROUPING_THREADS) {
        int32* to = args.tiles + 3 * (int64)(tile + i);
        to[0] = expert;
        to[1] = first + i * args.tile_rows;
        to[2] = max(0, min(args.tile_rows, count - i * args.tile_rows));
    }
}
