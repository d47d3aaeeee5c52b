// Heads of many tokens between the QKV product and attention: norm of queries and keys, rotary position embedding, and
// new rows of keys and values into their pages.
#include "heads.cuh"
#include "step.cuh"

static const int HEADS_AT_ONCE = 8;  // of a block, a warp each

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

template <bool CODES, int PIECES>
KESTREL_DEVICE void keep_row(const Rotary& args, const HeadRow<PIECES>& values, int head, int64 position) {
    PageRows<CODES> rows(args.step, args.layout, position);
    int width = args.layout.width;
    if (!CODES) {
        values.store((float*)rows.row(head, position), width);
        return;
    }
    float scale = values.store_codes(width, (uint8*)rows.row(head, position));
    if (lane_index() == 0) *rows.scale(head, position) = scale;
}

template <bool CODES, int PIECES>
KESTREL_DEVICE void rotate_and_keep(const Rotary& args) {
    wait_for_previous();
    let_next_start();
    int width = args.layout.width, kv_heads = args.layout.heads, head = blockIdx.y * HEADS_AT_ONCE + warp_index();
    if (head >= args.query_heads + 2 * kv_heads) return;
    int64 position = args.step->first + blockIdx.x;
    float* x = args.qkv + ((int64)blockIdx.x * (args.query_heads + 2 * kv_heads) + head) * width;
    HeadRow<PIECES> values;
    values.load(x, width);
    if (head < args.query_heads + kv_heads) {
        const float* weight = args.norm != nullptr ? args.norm + (int64)head * width : nullptr;
        Rotation rotation(args.cosines, args.sines, args.rotated, position);
        HeadFactors<PIECES> factors;
        HeadRow<PIECES> partners;
        partners.load_partners(x, rotation);
        factors.load(weight, rotation, width);
        float factor = weight != nullptr ? values.norm_factor(width, args.eps) : 1.0f;
        values.change(partners, factors, factor);
    }
    __syncwarp();  // lanes have read what others now write
    if (head < args.query_heads)
        values.store(x, width);
    else
        keep_row<CODES>(args, values, head - args.query_heads, position);
}

// blockIdx.x: which token; blockIdx.y: which heads. Those of more than 128 features take so many registers that few
// warps run at a time, so others have kernels of their own.
#define ROTATE_AND_KEEP(name, codes)                                                                                  \
    KESTREL_KERNEL_SHARING(name, HEADS_AT_ONCE * WARP, 5, Rotary) { rotate_and_keep<codes, 1>(args); }                \
    KESTREL_KERNEL(name##_wide, HEADS_AT_ONCE * WARP, Rotary) { rotate_and_keep<codes, WIDEST_HEAD / PIECE>(args); }

ROTATE_AND_KEEP(rotate_and_keep_codes, true)
ROTATE_AND_KEEP(rotate_and_keep_numbers, false)
