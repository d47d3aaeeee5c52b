// Rows of numbers, made by whatever doesn't quantise them itself, as what products read.
#include "activation.cuh"

static const int QUANTISE_THREADS = 256;

struct Quantise {
    const float* x;  // (T, K)
    Activation out;  // (T, K)
};

// One block a row.
KESTREL_KERNEL(quantise_rows, QUANTISE_THREADS, Quantise) {
    wait_for_previous();
    let_next_start();
    int width = args.out.width;
    const float* x = args.x + (int64)blockIdx.x * width;
    for (int i = 8 * threadIdx.x; i - 8 * lane_index() < width; i += 8 * QUANTISE_THREADS) {
        float values[8];
        load_eight(x, i, width, values);
        store_eight(args.out, blockIdx.x, i, values);
    }
}
