// RMSNorm of rows, and the gate of a feed-forward block: both make what a product reads.
#include "activation.cuh"

static const int ROW_THREADS = 256;

struct Norm {
    const float* x;       // (T, H)
    const float* weight;  // (H,)
    Activation out;       // (T, H)
    float eps;
    int32 padding;
};

// One block a row.
KESTREL_KERNEL(rms_norm, ROW_THREADS, Norm) {
    __shared__ float sums[MOST_ROW_CHUNKS];
    wait_for_previous();
    let_next_start();
    int width = args.out.width;
    const float* x = args.x + (int64)blockIdx.x * width;
    float values[8];
    for (int i = 8 * threadIdx.x; i - 8 * lane_index() < width; i += 8 * ROW_THREADS) {
        load_eight(x, i, width, values);
        float sum = sum_of_squares(values);
        if (lane_index() == 0) sums[i / ROW_CHUNK] = sum;
    }
    __syncthreads();
    float factor = norm_factor(sums, width, args.eps);
    for (int i = 8 * threadIdx.x; i - 8 * lane_index() < width; i += 8 * ROW_THREADS) {
        load_eight(x, i, width, values);
        for (int j = 0; j < 8; ++j) values[j] = i + j < width ? values[j] * factor * args.weight[i + j] : 0.0f;
        store_eight(args.out, blockIdx.x, i, values);
    }
}

struct Swiglu {
    const float* gate_up;  // (T, 2 I)
    Activation out;        // (T, I)
};

// out = silu(gate) * up. One block a row.
KESTREL_KERNEL(swiglu, ROW_THREADS, Swiglu) {
    wait_for_previous();
    let_next_start();
    int width = args.out.width;
    const float* gate = args.gate_up + (int64)blockIdx.x * 2 * width;
    for (int i = 8 * threadIdx.x; i - 8 * lane_index() < width; i += 8 * ROW_THREADS) {
        float values[8];
        for (int j = 0; j < 8; ++j) values[j] = i + j < width ? gated(gate[i + j], gate[width + i + j]) : 0.0f;
        store_eight(args.out, blockIdx.x, i, values);
    }
}
