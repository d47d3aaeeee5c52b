// Heads of many tokens between the QKV product and attention: norm of queries and keys, rotary position embedding, and
// new rows of keys and values into their pages.
#include "heads.cuh"
#include "step.cuh"

static const int HEAD_THREADS = 32;

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
    int8* row = (int8*)rows.row(head, position);
    float scale = row_codes(values, width, [row](int i, int8 code) { row[i] = code; });
    if (lane_index() == 0) *rows.scale(head, position) = scale;
}

// One warp a token (blockIdx.x) and head (blockIdx.y).
template <bool CODES>
KESTREL_DEVICE void rotate_and_keep(const Rotary& args) {
    __shared__ float values[WIDEST_HEAD];
    int width = args.layout.width, kv_heads = args.layout.heads, head = blockIdx.y;
    wait_for_previous();
    let_next_start();
    int64 position = args.step->first + blockIdx.x;
    float* x = args.qkv + ((int64)blockIdx.x * (args.query_heads + 2 * kv_heads) + head) * width;
    bool is_value = head >= args.query_heads + kv_heads;
    const float* weight = args.norm != nullptr && !is_value ? args.norm + (int64)head * width : nullptr;
    Rotation rotation(args.cosines, args.sines, is_value ? 0 : args.rotated, position);
    prepare_head(values, x, width, weight, args.eps, rotation);
    if (head < args.query_heads) {
        for (int i = lane_index(); i < width; i += WARP) x[i] = values[i];
    } else {
        keep_row<CODES>(args, values, head - args.query_heads, position);
    }
}

KESTREL_KERNEL(rotate_and_keep_codes, HEAD_THREADS, Rotary) { rotate_and_keep<true>(args); }
KESTREL_KERNEL(rotate_and_keep_numbers, HEAD_THREADS, Rotary) { rotate_and_keep<false>(args); }
