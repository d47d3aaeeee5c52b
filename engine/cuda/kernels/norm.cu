// RMSNorm of rows, and the gate of a feed-forward block: both make what a product reads.
#include "activation.cuh"

static const int ROW_THREADS = 256;
static const int ROW_PART = 8 * ROW_THREADS;  // that a block reads at once
static const int HELD_PARTS = 4;              // of a row that is read only once

struct Norm {
    const float* x;       // (T, H)
    const float* weight;  // (H,)
    Activation out;       // (T, H)
    float eps;
    int32 padding;
};

// Whether a warp has something of a part of a row. `column`: the lane's first.
KESTREL_DEVICE bool reaches(int column, int width) { return column - 8 * lane_index() < width; }

KESTREL_DEVICE void leave_squares(const float* values, int column, float* sums) {
    float sum = sum_of_squares(values);
    if (lane_index() == 0) sums[column / ROW_CHUNK] = sum;
}

KESTREL_DEVICE void store_normed(const Norm& args, int column, float factor, float* values) {
    int width = args.out.width;
    float weights[8];
    load_eight(args.weight, column, width, weights);
    for (int j = 0; j < 8; ++j) values[j] = column + j < width ? values[j] * factor * weights[j] : 0.0f;
    store_eight(args.out, blockIdx.x, column, values);
}

// One block a row. Up to some width it stays in registers meanwhile.
KESTREL_KERNEL_SHARING(rms_norm, ROW_THREADS, 4, Norm) {
    __shared__ float sums[MOST_ROW_CHUNKS];
    wait_for_previous();
    let_next_start();
    int width = args.out.width, first = 8 * threadIdx.x;
    const float* x = args.x + (int64)blockIdx.x * width;
    float held[HELD_PARTS][8], values[8];
    #pragma unroll
    for (int part = 0; part < HELD_PARTS; ++part)
        if (reaches(first + part * ROW_PART, width)) load_eight(x, first + part * ROW_PART, width, held[part]);
    #pragma unroll
    for (int part = 0; part < HELD_PARTS; ++part)
        if (reaches(first + part * ROW_PART, width)) leave_squares(held[part], first + part * ROW_PART, sums);
    for (int i = first + HELD_PARTS * ROW_PART; reaches(i, width); i += ROW_PART) {
        load_eight(x, i, width, values);
        leave_squares(values, i, sums);
    }
    __syncthreads();
    float factor = norm_factor(sums, width, args.eps);
    #pragma unroll
    for (int part = 0; part < HELD_PARTS; ++part)
        if (reaches(first + part * ROW_PART, width)) store_normed(args, first + part * ROW_PART, factor, held[part]);
    for (int i = first + HELD_PARTS * ROW_PART; reaches(i, width); i += ROW_PART) {
        load_eight(x, i, width, values);
        store_normed(args, i, factor, values);
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
    for (int i = 8 * threadIdx.x; reaches(i, width); i += ROW_PART) {
        float values[8], ups[8];
        load_eight(gate, i, width, values);
        load_eight(gate + width, i, width, ups);
        for (int j = 0; j < 8; ++j) values[j] = i + j < width ? gated(values[j], ups[j]) : 0.0f;
        store_eight(args.out, blockIdx.x, i, values);
    }
}
