// Products with matrices of numbers, and with codes where rows stay numbers: y[t][n] = sum over k of x[t][k] * w[n][k].
// The order of the sums is fixed by k alone, so a row has the same bits whatever the number of rows. Products of codes
// with rows in 8 bits are in product_few.cu and product_many.cu.
#include "activation.cuh"
#include "numbers.cuh"
#include "tiles.cuh"

static const int PRODUCT_THREADS = 256;
static const int MANY = 8;  // rows that share what is read of a matrix

struct Product {
    const uint8* weights;  // numbers (E, N, K)
    const float* bias;     // (N,) or null
    Activation x;          // (T, K)
    float* y;              // (T, stride)
    const int32* experts;  // which matrix each row of y takes; null: there is one
    int64 stride;          // of y
    int32 outputs;         // N
    int32 rows;            // of y
    int32 rows_each;       // rows of y that share one of x, next to each other
    int32 adds;            // whether y is added to, rather than set
};

KESTREL_DEVICE void store_output(float* y, const float* bias, bool adds, int output, float sum) {
    if (bias != nullptr) sum += bias[output];
    y[output] = adds ? y[output] + sum : sum;
}

// A warp makes one output of blockIdx.x, for TOKENS rows of blockIdx.y. Its lanes take their inputs in turn; then the
// lanes are added up in a tree.
template <int KIND, int TOKENS>
KESTREL_DEVICE void product_of_numbers(const Product& args) {
    wait_for_previous();
    let_next_start();
    int output = blockIdx.x * (PRODUCT_THREADS / WARP) + warp_index(), first = blockIdx.y * TOKENS;
    int count = min(TOKENS, args.rows - first), width = args.x.width;
    if (output >= args.outputs) return;
    int64 matrix_row = output;
    if (args.experts != nullptr) matrix_row += (int64)args.experts[first] * args.outputs;
    const float* x = args.x.values;
    float sums[TOKENS];
    for (int t = 0; t < TOKENS; ++t) sums[t] = 0.0f;
    if (neighbours_of(width) == 8) {
        for (int k = 8 * lane_index(); k < width; k += 8 * WARP) {
            EightNumbers<KIND> weights = eight_numbers<KIND>(args.weights, matrix_row * width + k);
            for (int t = 0; t < TOKENS; ++t) {
                if (t >= count) break;
                float values[8];
                whole_eight(x + (int64)((first + t) / args.rows_each) * width, k, width, values);
                sums[t] += product_of_eight(values, weights);
            }
        }
    } else {
        for (int k = lane_index(); k < width; k += WARP) {
            float weight = number_at<KIND>(args.weights, matrix_row * width + k);
            for (int t = 0; t < TOKENS; ++t)
                if (t < count)
                    sums[t] = fmaf(x[(int64)((first + t) / args.rows_each) * width + k], weight, sums[t]);
        }
    }
    for (int t = 0; t < TOKENS; ++t) {
        float sum = warp_sum(sums[t]);
        if (lane_index() == 0 && t < count)
            store_output(args.y + (first + t) * args.stride, args.bias, args.adds, output, sum);
    }
}

struct ProductValues {
    Tiles weights;         // of all experts
    const float* bias;     // (N,) or null
    Activation x;          // (T, K), of which its numbers are read
    float* y;              // (T, stride)
    const int32* experts;  // as in Product, and so on
    int64 stride;
    int32 rows;
    int32 rows_each;
    int32 adds;
    int32 padding;
};

KESTREL_DEVICE float byte_of(uint32 word, int i) { return (float)(int8)(word >> (8 * i)); }

// A warp makes one tile of blockIdx.x, for TOKENS rows of blockIdx.y. Lane 4 r + q goes through its stretch of every
// chain, for rows r and r + 8; then the four lanes of a row are added up.
template <int BITS, int TOKENS>
KESTREL_DEVICE void product_of_values(const ProductValues& args) {
    wait_for_previous();
    let_next_start();
    const Tiles& weights = args.weights;
    const int pieces = BlockWords<BITS>::PIECES;
    int tile = blockIdx.x * (PRODUCT_THREADS / WARP) + warp_index(), first = blockIdx.y * TOKENS;
    int count = min(TOKENS, args.rows - first), width = args.x.width, tiles = weights.num_tiles();
    if (tile >= tiles) return;
    int lane = lane_index(), r = lane / 4, q = lane % 4, stages = weights.num_stages();
    int64 at = tile;
    if (args.experts != nullptr) at += (int64)args.experts[first] * tiles;
    int64 scales = at * weights.tile_scales();
    const uint8* codes = weights.codes + at * stages * stage_bytes<BITS>() + piece_of(q, r) * 16;
    float sums[TOKENS][2];
    for (int t = 0; t < TOKENS; ++t) sums[t][0] = sums[t][1] = 0.0f;
    for (int stage = 0; stage < stages; ++stage, codes += stage_bytes<BITS>()) {
        int block = weights.block_of(stage, q);
        if (block >= weights.num_blocks()) continue;
        int64 place = scales + weights.scale_place(block, r);
        for (int i = 0; i < 2; ++i) {
            BlockWords<BITS> words;
            for (int j = 0; j < pieces; ++j)
                words.pieces[j] = load_streaming(codes + (i * pieces + j) * UNIT_BYTES);
            float scale = scale_at(weights.scales, weights.narrow_scales, place + i) / BlockWords<BITS>::ONE;
            float offset =
                weights.offsets == nullptr ? 0.0f : scale_at(weights.offsets, weights.narrow_scales, place + i);
            for (int t = 0; t < TOKENS; ++t) {
                if (t >= count) break;
                const float* x = args.x.values + (int64)((first + t) / args.rows_each) * width + block * WARP;
                float dot = 0.0f, total = 0.0f;
                for (int j = 0; j < 8; ++j) {
                    float4 four = *(const float4*)(x + 4 * j);
                    uint32 word = words.word(j / 4, j % 4);
                    dot = fmaf(four.x, byte_of(word, 0), dot);
                    dot = fmaf(four.y, byte_of(word, 1), dot);
                    dot = fmaf(four.z, byte_of(word, 2), dot);
                    dot = fmaf(four.w, byte_of(word, 3), dot);
                    total += (four.x + four.y) + (four.z + four.w);
                }
                sums[t][i] = fmaf(dot, scale, sums[t][i]);
                if (weights.offsets != nullptr) sums[t][i] = fmaf(total, offset, sums[t][i]);
            }
        }
    }
    for (int t = 0; t < TOKENS; ++t)
        for (int i = 0; i < 2; ++i) {
            float sum = sums[t][i];
            for (int distance = 1; distance < 4; distance *= 2)
                sum += __shfl_xor_sync(ALL_LANES, sum, distance);
            int output = tile * TILE + r + LANE_ROWS * i;
            if (q == 0 && t < count && output < weights.rows)
                store_output(args.y + (first + t) * args.stride, args.bias, args.adds, output, sum);
        }
}

#define PRODUCT_OF(name, Arguments, function, kind)                                                              \
    KESTREL_KERNEL(name##_one, PRODUCT_THREADS, Arguments) { function<kind, 1>(args); }                            \
    KESTREL_KERNEL(name##_many, PRODUCT_THREADS, Arguments) { function<kind, MANY>(args); }

PRODUCT_OF(product_codes8_float, ProductValues, product_of_values, 8)
PRODUCT_OF(product_codes4_float, ProductValues, product_of_values, 4)
PRODUCT_OF(product_float32, Product, product_of_numbers, FLOAT32)
PRODUCT_OF(product_float16, Product, product_of_numbers, FLOAT16)
PRODUCT_OF(product_bfloat16, Product, product_of_numbers, BFLOAT16)
