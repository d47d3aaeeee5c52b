// Rows of numbers, made by whatever doesn't quantise them itself, as what products read.
#include "activation.cuh"

static const int QUANTISE_THREADS = 256;
static const int QUANTISE_PART = 8 * QUANTISE_THREADS;  // that a block reads at once

struct Quantise {
    const float* x;  // (T, K)
    Activation out;  // (T, K)
};

// One block a row. A thread reads two pieces at a time, so that it waits half as often.
KESTREL_KERNEL(quantise_rows, QUANTISE_THREADS, Quantise) {
    wait_for_previous();
    let_next_start();
    int width = args.out.width;
    const float* x = args.x + (int64)blockIdx.x * width;
    for (int i = 8 * threadIdx.x; i - 8 * lane_index() < width; i += 2 * QUANTISE_PART) {
        float values[8], others[8];
        bool are_others = i - 8 * lane_index() + QUANTISE_PART < width;
        load_eight(x, i, width, values);
        if (are_others) load_eight(x, i + QUANTISE_PART, width, others);
        store_eight(args.out, blockIdx.x, i, values);
        if (are_others) store_eight(args.out, blockIdx.x, i + QUANTISE_PART, others);
    }
}
