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
    __shared__ float parts[ROW_THREADS / WARP];
    int width = args.out.width;
    const float* x = args.x + (int64)blockIdx.x * width;
    float squares = 0.0f;
    for (int i = threadIdx.x; i < width; i += ROW_THREADS) squares = fmaf(x[i], x[i], squares);
    squares = warp_sum(squares);
    if (lane_index() == 0) parts[warp_index()] = squares;
    __syncthreads();
    float total = 0.0f;
    for (int i = 0; i < ROW_THREADS / WARP; ++i) total += parts[i];
    float factor = 1.0f / sqrtf(total / width + args.eps);
    // Whole warps, so that all lanes meet where numbers share a scale.
    for (int i = threadIdx.x; i - lane_index() < width; i += ROW_THREADS) {
        float value = i < width ? x[i] * factor * args.weight[i] : 0.0f;
        store_activation(args.out, blockIdx.x, i, value);
    }
}

struct Swiglu {
    const float* gate_up;  // (T, 2 I)
    Activation out;        // (T, I)
};

// out = silu(gate) * up. One block a row.
KESTREL_KERNEL(swiglu, ROW_THREADS, Swiglu) {
    int width = args.out.width;
    const float* gate = args.gate_up + (int64)blockIdx.x * 2 * width;
    for (int i = threadIdx.x; i - lane_index() < width; i += ROW_THREADS) {
        float value = i < width ? gate[i] / (1.0f + expf(-gate[i])) * gate[width + i] : 0.0f;
        store_activation(args.out, blockIdx.x, i, value);
    }
}
