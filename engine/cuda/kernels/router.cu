// The router of a mixture of experts.
#include "activation.cuh"
#include "numbers.cuh"
#include "route.cuh"

// One block a token, behind the router's product.
KESTREL_KERNEL(route, ROUTE_THREADS, Route) {
    __shared__ Routing shared;
    wait_for_previous();
    let_next_start();
    route_token(args, blockIdx.x, shared);
}

static const int ROUTER_THREADS = ROUTE_THREADS;

// All of it, for few tokens.
struct Router {
    const float* x;        // (T, H)
    const float* norm;     // (H,)
    Activation out;        // (T, H), behind the norm: what the experts read
    const uint8* weights;  // numbers (E, H)
    Route route;           // whose logits are made here
    int32* arrivals;       // (T,), zeros before and after; null: whoever reads the logits chooses by himself
    float eps;
    int32 each;            // logits that a block makes
};

// What a block has to do. blockIdx.y is the token; the last block of each leaves its row for the experts, and the others
// make logits. In shared memory: of each logit, a float for eight inputs, and its weights.
template <int KIND>
struct RouterBlock {
    static const int PIECES = EightNumbers<KIND>::PIECES;
    int token, width, eights, first, count;
    bool keeps_row;
    float* parts;
    uint4* weights;

    KESTREL_DEVICE RouterBlock(const Router& args)
        : token(blockIdx.y), width(args.out.width), eights(width / 8), first(blockIdx.x * args.each) {
        keeps_row = blockIdx.x == gridDim.x - 1;
        count = keeps_row ? 0 : min(args.each, args.route.count - first);
        parts = (float*)dynamic_shared();
        weights = (uint4*)(parts + (args.each * eights + 3) / 4 * 4);
    }

    // Each thread those that it multiplies itself.
    KESTREL_DEVICE void ask_for_weights(const Router& args) const {
        const uint4* from = (const uint4*)args.weights + (int64)first * eights * PIECES;
#pragma unroll 1
        for (int i = threadIdx.x; i < eights; i += ROUTER_THREADS)
#pragma unroll 4
            for (int logit = 0; logit < count; ++logit) {
                int at = (logit * eights + i) * PIECES;
                for (int piece = 0; piece < PIECES; ++piece) copy_async16(weights + at + piece, from + at + piece);
            }
        commit_copies();
    }

    KESTREL_DEVICE void multiply(int i, const float* values) const {
#pragma unroll 2
        for (int logit = 0; logit < count; ++logit) {
            EightNumbers<KIND> eight;
            for (int piece = 0; piece < PIECES; ++piece)
                eight.take(piece, weights[(logit * eights + i) * PIECES + piece]);
            parts[logit * eights + i] = product_of_eight(values, eight);
        }
    }

    // In the order of `product_of_numbers`.
    KESTREL_DEVICE void add_up(float* logits) const {
        for (int logit = warp_index(); logit < count; logit += ROUTER_THREADS / WARP) {
            float sum = 0.0f;
#pragma unroll 8
            for (int i = lane_index(); i < eights; i += WARP) sum += parts[logit * eights + i];
            sum = warp_sum(sum);
            if (lane_index() == 0) logits[first + logit] = sum;
        }
    }
};

// From the row to its part of the logits, or to what the experts read. norm: the thread's first eight of it.
template <int KIND>
KESTREL_DEVICE void multiply_row(const Router& args, const RouterBlock<KIND>& block, const float* norm) {
    __shared__ float sums[MOST_ROW_CHUNKS];
    int width = block.width, lane = lane_index(), column = 8 * threadIdx.x;
    const float* x = args.x + (int64)block.token * width;
    float first[8], values[8], weights[8];
    whole_eight(x, column, width, first);
    for (int j = 0; j < 8; ++j) values[j] = first[j];
#pragma unroll 1
    for (int i = column; i - 8 * lane < width; i += 8 * ROUTER_THREADS) {
        if (i != column) whole_eight(x, i, width, values);
        float sum = sum_of_squares(values);
        if (lane == 0) sums[i / ROW_CHUNK] = sum;
    }
    __syncthreads();
    float factor = norm_factor(sums, width, args.eps);
    for (int j = 0; j < 8; ++j) values[j] = first[j], weights[j] = norm[j];
    wait_copies<0>();
#pragma unroll 1
    for (int i = column; i - 8 * lane < width; i += 8 * ROUTER_THREADS) {
        if (i != column) {
            whole_eight(x, i, width, values);
            whole_eight(args.norm, i, width, weights);
        }
        for (int j = 0; j < 8; ++j) values[j] = values[j] * factor * weights[j];
        if (block.keeps_row)
            store_eight(args.out, block.token, i, values);
        else if (i < width)
            block.multiply(i / 8, values);
    }
}

// Whether all other blocks have left their logits. Behind it they can be read.
KESTREL_DEVICE bool comes_last(int32* arrivals, uint32 others) {
    __shared__ uint32 arrived;
    __syncthreads();
    if (threadIdx.x == 0) arrived = count_arrival((uint32*)arrivals, others);
    __syncthreads();
    return arrived == others;
}

// Whichever block of a token is the last to have its logits chooses, if anybody does here. Bits are those of rms_norm, the
// product and route one after the other.
//
// What is behind this launch reads nothing before its own wait but weights: so it may begin before this one's is over.
template <int KIND>
KESTREL_DEVICE void run_router(const Router& args) {
    __shared__ Routing routing;
    let_next_start();
    RouterBlock<KIND> block(args);
    float norm[8];
    whole_eight(args.norm, 8 * threadIdx.x, block.width, norm);
    block.ask_for_weights(args);
    wait_for_previous();
    multiply_row(args, block, norm);
    if (block.keeps_row) return;
    __syncthreads();
    block.add_up((float*)args.route.logits + (int64)block.token * args.route.count);
    if (args.arrivals == nullptr) return;
    if (comes_last(args.arrivals + block.token, gridDim.x - 2)) route_token(args.route, block.token, routing);
}

KESTREL_KERNEL_SHARING(router_float32, ROUTER_THREADS, 2, Router) { run_router<FLOAT32>(args); }
KESTREL_KERNEL_SHARING(router_float16, ROUTER_THREADS, 2, Router) { run_router<FLOAT16>(args); }
KESTREL_KERNEL_SHARING(router_bfloat16, ROUTER_THREADS, 2, Router) { run_router<BFLOAT16>(args); }
