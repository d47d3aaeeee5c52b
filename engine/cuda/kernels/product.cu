// Products with matrices: y[t][n] = sum over k of x[t][k] * w[n][k], for codes with scales and for numbers.
//
// A warp makes one output of up to TOKENS rows of x. The order of the sums is fixed by k alone: lane i takes the blocks
// of 32 inputs i, i + 32, ... in turn, then the lanes are added up in a tree. So a row has the same bits whatever
// the number of rows.
#include "activation.cuh"

enum WeightKind { FLOAT32 = 0, FLOAT16 = 1, BFLOAT16 = 2, CODES8 = 3, CODES4 = 4 };

struct Product {
    const uint8* weights;   // codes or numbers (N, K), of all experts one after the other
    const uint8* scales;    // (N, K / G) float16 or float32; null for numbers
    const uint8* offsets;   // as scales; null where there are none
    const float* bias;      // (N,) or null
    Activation x;           // (T, K)
    float* y;               // (T, stride)
    const int32* experts;   // which matrix each row of y takes; null: there is one
    int64 stride;           // of y
    int32 outputs;          // N
    int32 rows;             // of y
    int32 rows_each;        // rows of y that share one of x, next to each other
    int32 blocks_a_scale;   // G / 32
    int32 narrow_scales;    // whether they are float16
    int32 adds;             // whether y is added to, rather than set
};

KESTREL_DEVICE float scale_at(const uint8* scales, bool narrow, int64 index) {
    return narrow ? half_to_float(((const uint16*)scales)[index]) : ((const float*)scales)[index];
}

// One block of 32 codes, as the words of two or one 16-byte loads.
template <int KIND>
struct Block;

template <>
struct Block<CODES8> {
    static const int BYTES = 32;
    uint32 words[8];

    KESTREL_DEVICE explicit Block(const uint8* address) {
        uint4 first = load_streaming(address), second = load_streaming(address + 16);
        words[0] = first.x, words[1] = first.y, words[2] = first.z, words[3] = first.w;
        words[4] = second.x, words[5] = second.y, words[6] = second.z, words[7] = second.w;
    }

    // Codes 4 i ... 4 i + 3, as bytes that stand for `ONE` times what they are.
    KESTREL_DEVICE uint32 codes(int i) const { return words[i]; }
    static const int ONE = 1;
};

template <>
struct Block<CODES4> {
    static const int BYTES = 16;
    uint32 words[4];

    KESTREL_DEVICE explicit Block(const uint8* address) {
        uint4 all = load_streaming(address);
        words[0] = all.x, words[1] = all.y, words[2] = all.z, words[3] = all.w;
    }

    // A nibble in the upper half of a byte is 16 times the code, sign and all. Low nibbles are codes 0 to 15.
    KESTREL_DEVICE uint32 codes(int i) const {
        return (i < 4 ? words[i] << 4 : words[i - 4]) & 0xf0f0f0f0u;
    }
    static const int ONE = 16;
};

KESTREL_DEVICE float byte_of(uint32 word, int i) { return (float)(int8)(word >> (8 * i)); }

// How activations come into a product.
enum Form { VALUES = 0, HIGH = 1, HIGH_AND_LOW = 2 };

// The part of one block of 32 inputs in an output: what is added to its sum.
template <int KIND, int FORM>
KESTREL_DEVICE float add_block(
    const Product& args, const Block<KIND>& block, int64 x_row, int index, float scale, float offset, float sum
) {
    int64 at = x_row * args.x.width + index * WARP;
    if (FORM == VALUES) {
        float dot = 0.0f, total = 0.0f;
        for (int i = 0; i < 8; ++i) {
            float4 x = *(const float4*)(args.x.values + at + 4 * i);
            uint32 codes = block.codes(i);
            dot = fmaf(x.x, byte_of(codes, 0), dot);
            dot = fmaf(x.y, byte_of(codes, 1), dot);
            dot = fmaf(x.z, byte_of(codes, 2), dot);
            dot = fmaf(x.w, byte_of(codes, 3), dot);
            if (args.offsets != nullptr) total += (x.x + x.y) + (x.z + x.w);
        }
        sum = fmaf(dot, scale / Block<KIND>::ONE, sum);
        return args.offsets != nullptr ? fmaf(total, offset, sum) : sum;
    }
    const uint32 ones = 0x01010101u;
    const uint4* high = (const uint4*)(args.x.high + at);
    const uint4* low = (const uint4*)(args.x.low + at);
    int32 dot = 0, low_dot = 0, total = 0, low_total = 0;
    for (int half = 0; half < 2; ++half) {
        uint4 x = high[half];
        uint32 words[4] = {x.x, x.y, x.z, x.w};
        for (int i = 0; i < 4; ++i) {
            dot = dot4(block.codes(4 * half + i), words[i], dot);
            if (args.offsets != nullptr) total = dot4(ones, words[i], total);
        }
        if (FORM == HIGH_AND_LOW) {
            uint4 fine = low[half];
            uint32 fine_words[4] = {fine.x, fine.y, fine.z, fine.w};
            for (int i = 0; i < 4; ++i) {
                low_dot = dot4(block.codes(4 * half + i), fine_words[i], low_dot);
                if (args.offsets != nullptr) low_total = dot4(ones, fine_words[i], low_total);
            }
        }
    }
    float x_scale = args.x.scales[at / WARP];
    if (FORM == HIGH_AND_LOW) {
        dot = dot * (int32)LOW_STEPS + low_dot;
        total = total * (int32)LOW_STEPS + low_total;
        x_scale = x_scale / LOW_STEPS;
    }
    sum = fmaf((float)dot, scale / Block<KIND>::ONE * x_scale, sum);
    return args.offsets != nullptr ? fmaf((float)total, offset * x_scale, sum) : sum;
}

KESTREL_DEVICE void store_output(const Product& args, int64 row, int output, float sum) {
    if (args.bias != nullptr) sum += args.bias[output];
    float* y = args.y + row * args.stride + output;
    *y = args.adds ? *y + sum : sum;
}

// Which rows of y a warp makes, and of which output: those of blockIdx.y, and one output of blockIdx.x each.
template <int TOKENS>
struct Place {
    int output, first, count;

    KESTREL_DEVICE explicit Place(const Product& args) {
        output = blockIdx.x * (blockDim.x / WARP) + warp_index();
        first = blockIdx.y * TOKENS;
        count = min(TOKENS, args.rows - first);
    }
};

template <int KIND, int FORM, int TOKENS>
KESTREL_DEVICE void product_of_codes(const Product& args) {
    Place<TOKENS> place(args);
    if (place.output >= args.outputs) return;
    int num_blocks = args.x.width / WARP;
    int64 matrix_row = place.output;
    if (args.experts != nullptr) matrix_row += (int64)args.experts[place.first] * args.outputs;
    const uint8* codes = args.weights + matrix_row * num_blocks * Block<KIND>::BYTES;
    int64 scales = matrix_row * (num_blocks / args.blocks_a_scale);
    float sums[TOKENS];
    for (int t = 0; t < TOKENS; ++t) sums[t] = 0.0f;
    for (int index = lane_index(); index < num_blocks; index += WARP) {
        Block<KIND> block(codes + index * Block<KIND>::BYTES);
        int64 scale_index = scales + index / args.blocks_a_scale;
        float scale = scale_at(args.scales, args.narrow_scales, scale_index);
        float offset = args.offsets != nullptr ? scale_at(args.offsets, args.narrow_scales, scale_index) : 0.0f;
        for (int t = 0; t < TOKENS; ++t)
            if (t < place.count)
                sums[t] = add_block<KIND, FORM>(
                    args, block, (place.first + t) / args.rows_each, index, scale, offset, sums[t]
                );
    }
    for (int t = 0; t < TOKENS; ++t) {
        float sum = warp_sum(sums[t]);
        if (lane_index() == 0 && t < place.count) store_output(args, place.first + t, place.output, sum);
    }
}

template <int KIND>
KESTREL_DEVICE float number_at(const uint8* weights, int64 index) {
    if (KIND == FLOAT32) return ((const float*)weights)[index];
    uint16 bits = ((const uint16*)weights)[index];
    return KIND == FLOAT16 ? half_to_float(bits) : bfloat16_to_float(bits);
}

template <int KIND, int TOKENS>
KESTREL_DEVICE void product_of_numbers(const Product& args) {
    Place<TOKENS> place(args);
    if (place.output >= args.outputs) return;
    int64 matrix_row = place.output;
    if (args.experts != nullptr) matrix_row += (int64)args.experts[place.first] * args.outputs;
    int width = args.x.width;
    float sums[TOKENS];
    for (int t = 0; t < TOKENS; ++t) sums[t] = 0.0f;
    for (int k = lane_index(); k < width; k += WARP) {
        float weight = number_at<KIND>(args.weights, matrix_row * width + k);
        for (int t = 0; t < TOKENS; ++t)
            if (t < place.count) {
                int64 x_row = (place.first + t) / args.rows_each;
                sums[t] = fmaf(args.x.values[x_row * width + k], weight, sums[t]);
            }
    }
    for (int t = 0; t < TOKENS; ++t) {
        float sum = warp_sum(sums[t]);
        if (lane_index() == 0 && t < place.count) store_output(args, place.first + t, place.output, sum);
    }
}

static const int PRODUCT_THREADS = 256;
static const int MANY = 8;  // rows that share what is read of a matrix

#define PRODUCT_OF_CODES(name, kind, form)                                                                       \
    KESTREL_KERNEL(name##_one, PRODUCT_THREADS, Product) { product_of_codes<kind, form, 1>(args); }               \
    KESTREL_KERNEL(name##_many, PRODUCT_THREADS, Product) { product_of_codes<kind, form, MANY>(args); }

#define PRODUCT_OF_NUMBERS(name, kind)                                                                           \
    KESTREL_KERNEL(name##_one, PRODUCT_THREADS, Product) { product_of_numbers<kind, 1>(args); }                   \
    KESTREL_KERNEL(name##_many, PRODUCT_THREADS, Product) { product_of_numbers<kind, MANY>(args); }

PRODUCT_OF_CODES(product_codes8_float, CODES8, VALUES)
PRODUCT_OF_CODES(product_codes8_int8, CODES8, HIGH)
PRODUCT_OF_CODES(product_codes8_int8x2, CODES8, HIGH_AND_LOW)
PRODUCT_OF_CODES(product_codes4_float, CODES4, VALUES)
PRODUCT_OF_CODES(product_codes4_int8, CODES4, HIGH)
PRODUCT_OF_CODES(product_codes4_int8x2, CODES4, HIGH_AND_LOW)
PRODUCT_OF_NUMBERS(product_float32, FLOAT32)
PRODUCT_OF_NUMBERS(product_float16, FLOAT16)
PRODUCT_OF_NUMBERS(product_bfloat16, BFLOAT16)
