// Attention of single queries over the rows of pages. The tokens are cut into splits at fixed positions, each of which a
// block goes through by itself; another kernel puts them together in their order. What a query sees alone decides
// about its bits: not who else is asked at once, nor what else the pages hold.
#include "activation.cuh"
#include "step.cuh"

static const int COMBINE_THREADS = 256;
static const int WIDEST_KEY = 512;

struct Attention {
    const Step* step;
    const float* qkv;     // (T, A + 2 G, D), of which queries are read
    float* partials;      // (rows, A, splits, D + 2): sums, then the largest score and the sum of weights
    Activation out;       // (T, A * D)
    PageLayout layout;
    int32 query_heads;    // A
    int32 window;         // tokens that a query sees, itself among them; 0: all
    int32 first_row;      // of the step, which row 0 of the partials is
    int32 splits;         // enough for the last row
    float scale;
    int32 padding;
};

KESTREL_DEVICE int64 oldest_visible(const Attention& args, int64 position) {
    return args.window > 0 && position >= args.window ? position - args.window + 1 : 0;
}

KESTREL_DEVICE float* partial_of(const Attention& args, int row, int head, int split) {
    int64 index = ((int64)row * args.query_heads + head) * args.splits + split;
    return args.partials + index * (args.layout.width + 2);
}

template <bool CODES>
KESTREL_DEVICE float4 four_of(const uint8* row, int quad) {
    if (!CODES) return ((const float4*)row)[quad];
    uint32 word = ((const uint32*)row)[quad];
    return make_float4(
        (float)(int8)word, (float)(int8)(word >> 8), (float)(int8)(word >> 16), (float)(int8)(word >> 24)
    );
}

// The sum or the largest over a block of SPLIT threads, in every thread.
KESTREL_DEVICE float block_sum(float value, float* parts) {
    value = warp_sum(value);
    if (lane_index() == 0) parts[warp_index()] = value;
    __syncthreads();
    float total = 0.0f;
    for (int i = 0; i < SPLIT / WARP; ++i) total += parts[i];
    __syncthreads();
    return total;
}

KESTREL_DEVICE float block_max(float value, float* parts) {
    value = warp_max(value);
    if (lane_index() == 0) parts[warp_index()] = value;
    __syncthreads();
    float largest = parts[0];
    for (int i = 1; i < SPLIT / WARP; ++i) largest = fmaxf(largest, parts[i]);
    __syncthreads();
    return largest;
}

// One block a split (blockIdx.x), query head (blockIdx.y) and row (blockIdx.z).
template <bool CODES>
KESTREL_DEVICE void attend(const Attention& args) {
    __shared__ float query[WIDEST_KEY];
    __shared__ float weights[SPLIT];
    __shared__ float parts[SPLIT / WARP];
    __shared__ float4 sums[SPLIT];  // of that type, so that they lie where fours may be stored
    int width = args.layout.width, kv_heads = args.layout.heads, head = blockIdx.y;
    int64 position = args.step->first + args.first_row + blockIdx.z, start = (int64)blockIdx.x * SPLIT;
    int64 oldest = oldest_visible(args, position);
    if (start > position || start + SPLIT <= oldest) return;
    int kv_head = head / (args.query_heads / kv_heads);
    int64 row = args.first_row + blockIdx.z;
    const float* q = args.qkv + (row * (args.query_heads + 2 * kv_heads) + head) * width;
    for (int i = threadIdx.x; i < width; i += SPLIT) query[i] = q[i];
    __syncthreads();

    int64 token = start + threadIdx.x;
    bool visible = token >= oldest && token <= position;
    float score = __uint_as_float(0xff800000u);  // minus infinity
    float value_scale = 1.0f;
    if (visible) {
        PageRows<CODES> rows(args.step, args.layout, token);
        const uint8* key = rows.row(kv_head, token);
        float dot = 0.0f;
        for (int i = 0; i < width / 4; ++i) {
            float4 four = four_of<CODES>(key, i);
            dot = fmaf(query[4 * i], four.x, dot);
            dot = fmaf(query[4 * i + 1], four.y, dot);
            dot = fmaf(query[4 * i + 2], four.z, dot);
            dot = fmaf(query[4 * i + 3], four.w, dot);
        }
        score = dot * args.scale;
        if (CODES) {
            score *= *rows.scale(kv_head, token);
            value_scale = *rows.scale(kv_heads + kv_head, token);
        }
    }
    float largest = block_max(score, parts);
    float weight = visible ? expf(score - largest) : 0.0f;
    float total = block_sum(weight, parts);
    weights[threadIdx.x] = visible ? weight * value_scale : 0.0f;
    __syncthreads();

    // Each thread adds up four features of every so many tokens; then what belongs together is added up in order.
    int quads = width / 4, subsets = SPLIT / quads, subset = threadIdx.x / quads, quad = threadIdx.x % quads;
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    int end = (int)min((int64)SPLIT, position - start + 1);
    for (int i = subset; subset < subsets && i < end; i += subsets) {
        if (start + i < oldest) continue;
        PageRows<CODES> rows(args.step, args.layout, start + i);
        float4 four = four_of<CODES>(rows.row(kv_heads + kv_head, start + i), quad);
        sum.x = fmaf(weights[i], four.x, sum.x);
        sum.y = fmaf(weights[i], four.y, sum.y);
        sum.z = fmaf(weights[i], four.z, sum.z);
        sum.w = fmaf(weights[i], four.w, sum.w);
    }
    if (subset < subsets) sums[subset * quads + quad] = sum;
    __syncthreads();
    float* partial = partial_of(args, blockIdx.z, head, blockIdx.x);
    for (int i = threadIdx.x; i < width; i += SPLIT) {
        float all = 0.0f;
        for (int j = 0; j < subsets; ++j) all += ((const float*)sums)[j * width + i];
        partial[i] = all;
    }
    if (threadIdx.x == 0) {
        partial[width] = largest;
        partial[width + 1] = total;
    }
}

KESTREL_KERNEL(attend_codes, SPLIT, Attention) { attend<true>(args); }
KESTREL_KERNEL(attend_numbers, SPLIT, Attention) { attend<false>(args); }

// One block a row: its splits become one, head after head.
KESTREL_KERNEL(combine_splits, COMBINE_THREADS, Attention) {
    int width = args.layout.width, columns = args.out.width;
    int64 row = args.first_row + blockIdx.x, position = args.step->first + row;
    int first = (int)(oldest_visible(args, position) / SPLIT), last = (int)(position / SPLIT);
    for (int column = threadIdx.x; column - lane_index() < columns; column += COMBINE_THREADS) {
        float value = 0.0f;
        if (column < columns) {
            int head = column / width, feature = column % width;
            float largest = __uint_as_float(0xff800000u), total = 0.0f;
            for (int split = first; split <= last; ++split)
                largest = fmaxf(largest, partial_of(args, blockIdx.x, head, split)[width]);
            for (int split = first; split <= last; ++split) {
                const float* partial = partial_of(args, blockIdx.x, head, split);
                float factor = expf(partial[width] - largest);
                total = fmaf(partial[width + 1], factor, total);
                value = fmaf(partial[feature], factor, value);
            }
            value /= total;
        }
        store_activation(args.out, row, column, value);
    }
}
