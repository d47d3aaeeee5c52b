// Heads between the QKV product and attention: norm of queries and keys, rotary position embedding, and new rows of keys
// and values into their pages.
#include "activation.cuh"
#include "step.cuh"

static const int HEAD_THREADS = 32;
static const int WIDEST_HEAD = 512;

struct Rotary {
    const Step* step;
    float* qkv;             // (T, A + 2 G, D); queries stay there, rotated
    const float* norm;      // (A + G, D) or null
    const float* cosines;   // (positions, R / 2): by position
    const float* sines;     // (positions, R / 2)
    PageLayout layout;
    int32 query_heads;      // A
    int32 rotated;          // R, of each head's D
    float eps;
    int32 padding;
};

template <bool CODES>
KESTREL_DEVICE void keep_row(const Rotary& args, const float* values, int head, int64 position) {
    PageRows<CODES> rows(args.step, args.layout, position);
    int width = args.layout.width;
    if (!CODES) {
        float* row = (float*)rows.row(head, position);
        for (int i = lane_index(); i < width; i += WARP) row[i] = values[i];
        return;
    }
    float largest = 0.0f;
    bool finite = true;
    for (int i = lane_index(); i < width; i += WARP) {
        largest = fmaxf(largest, fabsf(values[i]));
        finite = finite && is_finite(values[i]);
    }
    float scale = scale_of(warp_max(largest), finite);
    int8* row = (int8*)rows.row(head, position);
    for (int i = lane_index(); i < width; i += WARP) row[i] = scale > 0.0f ? (int8)rintf(values[i] / scale) : 0;
    if (lane_index() == 0) *rows.scale(head, position) = scale;
}

// One warp a token (blockIdx.x) and head (blockIdx.y).
template <bool CODES>
KESTREL_DEVICE void rotate_and_keep(const Rotary& args) {
    __shared__ float values[WIDEST_HEAD];
    int width = args.layout.width, kv_heads = args.layout.heads, head = blockIdx.y;
    int64 position = args.step->first + blockIdx.x;
    float* x = args.qkv + ((int64)blockIdx.x * (args.query_heads + 2 * kv_heads) + head) * width;
    bool is_value = head >= args.query_heads + kv_heads;
    float factor = 1.0f;
    const float* weight = nullptr;
    if (args.norm != nullptr && !is_value) {
        float squares = 0.0f;
        for (int i = lane_index(); i < width; i += WARP) squares = fmaf(x[i], x[i], squares);
        factor = 1.0f / sqrtf(warp_sum(squares) / width + args.eps);
        weight = args.norm + (int64)head * width;
    }
    for (int i = lane_index(); i < width; i += WARP) values[i] = weight != nullptr ? x[i] * factor * weight[i] : x[i];
    __syncwarp();
    if (!is_value) {
        int half = args.rotated / 2;
        const float* cosines = args.cosines + position * half;
        const float* sines = args.sines + position * half;
        for (int i = lane_index(); i < half; i += WARP) {
            float first = values[i], second = values[i + half];
            values[i] = first * cosines[i] - second * sines[i];
            values[i + half] = second * cosines[i] + first * sines[i];
        }
        __syncwarp();
    }
    if (head < args.query_heads) {
        for (int i = lane_index(); i < width; i += WARP) x[i] = values[i];
    } else {
        keep_row<CODES>(args, values, head - args.query_heads, position);
    }
}

KESTREL_KERNEL(rotate_and_keep_codes, HEAD_THREADS, Rotary) { rotate_and_keep<true>(args); }
KESTREL_KERNEL(rotate_and_keep_numbers, HEAD_THREADS, Rotary) { rotate_and_keep<false>(args); }
