// The router of a mixture of experts.
#include "activation.cuh"
#include "numbers.cuh"
#include "route.cuh"

static const int ROUTE_THREADS = 32;

// One block a token, behind the router's product.
KESTREL_KERNEL(route, ROUTE_THREADS, Route) {
    __shared__ Routing shared;
    wait_for_previous();
    let_next_start();
    route_token(args, blockIdx.x, shared);
}

static const int ROUTER_THREADS = 256;

// All of it, for few tokens.
struct Router {
    const float* x;        // (T, H)
    const float* norm;     // (H,)
    Activation out;        // (T, H), behind the norm: what the experts read
    const uint8* weights;  // numbers (E, H)
    Route route;           // whose logits are made here
    int32* arrivals;       // (T,), zeros before and after
    float eps;
    int32 padding;
};

// blockIdx.y is the token. A warp makes a logit; whichever block of a token is the last has it choose. Bits are those of
// rms_norm, the product and route one after the other.
template <int KIND>
KESTREL_DEVICE void run_router(const Router& args) {
    __shared__ float sums[MOST_ROW_CHUNKS];
    __shared__ Routing routing;
    __shared__ bool is_last;
    int width = args.out.width, token = blockIdx.y, lane = lane_index();
    int expert = blockIdx.x * (ROUTER_THREADS / WARP) + warp_index();
    const float* x = args.x + (int64)token * width;
    float* values = (float*)dynamic_shared();
    wait_for_previous();
    let_next_start();
    for (int i = 8 * threadIdx.x; i - 8 * lane < width; i += 8 * ROUTER_THREADS) {
        float eight[8];
        whole_eight(x, i, width, eight);
        float sum = sum_of_squares(eight);
        if (lane == 0) sums[i / ROW_CHUNK] = sum;
    }
    __syncthreads();
    float factor = norm_factor(sums, width, args.eps);
    for (int i = 8 * threadIdx.x; i - 8 * lane < width; i += 8 * ROUTER_THREADS) {
        float eight[8], weights[8];
        whole_eight(x, i, width, eight);
        whole_eight(args.norm, i, width, weights);
        for (int j = 0; j < 8; ++j) eight[j] = eight[j] * factor * weights[j];
        if (i < width)
            for (int j = 0; j < 8; ++j) values[i + j] = eight[j];
        if (blockIdx.x == 0) store_eight(args.out, token, i, eight);
    }
    __syncthreads();
    if (expert < args.route.count) {
        float sum = 0.0f;
#pragma unroll 4
        for (int k = 8 * lane; k < width; k += 8 * WARP) {
            float weights[8];
            eight_numbers<KIND>(args.weights, (int64)expert * width + k, weights);
            for (int i = 0; i < 8; ++i) sum = fmaf(values[k + i], weights[i], sum);
        }
        sum = warp_sum(sum);
        if (lane == 0) ((float*)args.route.logits)[(int64)token * args.route.count + expert] = sum;
    }
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) is_last = atomicInc((uint32*)args.arrivals + token, gridDim.x - 1) == gridDim.x - 1;
    __syncthreads();
    if (!is_last || warp_index() != 0) return;
    __threadfence();
    route_token(args.route, token, routing);
}

KESTREL_KERNEL(router_float32, ROUTER_THREADS, Router) { run_router<FLOAT32>(args); }
KESTREL_KERNEL(router_float16, ROUTER_THREADS, Router) { run_router<FLOAT16>(args); }
KESTREL_KERNEL(router_bfloat16, ROUTER_THREADS, Router) { run_router<BFLOAT16>(args); }
