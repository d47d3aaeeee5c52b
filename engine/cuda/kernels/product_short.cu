// Products of the rows of a short turn with strips in tiles, with the bits of product_many.cu.
//
// A block makes 32 outputs of TOKENS rows. Its warps share out the stretches, so that all of the card reads weights
// even where there are few outputs; the stretches' sums come together in shared memory, in ascending order.
#include "tile_sums.cuh"

static const int SHORT_WARPS = 8;

// PLAIN: scales are float16, and there are no offsets.
template <int BITS, int PLANES, bool PLAIN, int TOKENS>
struct ShortRows {
    using Sum = BlockSum<BITS, PLANES, PLAIN>;
    using Pair = Scales<PLAIN>;
    static const int COLUMNS = TOKENS / 8, NUMBERS = COLUMNS * 4, WORDS = Fragment<BITS>::WORDS;
    static const int OWN = NUMBERS / SHORT_WARPS;  // of those that a lane of each warp made, how many this warp adds up
    static_assert(OWN * SHORT_WARPS == NUMBERS, "they are dealt out evenly");
    using Parts = float[SHORT_WARPS][NUMBERS][WARP];

    const TiledProduct& args;
    const TwoTiles two;
    const ScalePlaces places;
    const bool has_offsets;
    const int64 first;
    const int count, blocks;
    const uint8* weights[2];
    int64 scales_at[2];
    int x_at[COLUMNS], scale_at[COLUMNS][2];  // from the first row's
    float sums[2][COLUMNS][4], totals[2][OWN];

    KESTREL_DEVICE explicit ShortRows(const TiledProduct& args)
        : args(args), two(args, blockIdx.y), places(args.weights), has_offsets(!PLAIN && args.weights.offsets != nullptr),
          first((int64)blockIdx.x * TOKENS), count((int)min((int64)TOKENS, args.rows - first)),
          blocks(args.weights.num_blocks()) {
        #pragma unroll
        for (int m = 0; m < 2; ++m) {
            int64 bytes = (int64)args.weights.num_stages() * (WORDS * UNIT_BYTES);
            weights[m] = args.weights.codes + two.numbers[m] * bytes;
            scales_at[m] = two.numbers[m] * args.weights.tile_scales() * (places.pair / 2);
            #pragma unroll
            for (int i = 0; i < OWN; ++i) totals[m][i] = -0.0f;  // which changes nothing that is added to it
        }
        #pragma unroll
        for (int n = 0; n < COLUMNS; ++n) {
            x_at[n] = min(n * 8 + lane_index() / 4, count - 1) * args.x.width + lane_index() % 4 * 8;
            #pragma unroll
            for (int column = 0; column < 2; ++column)
                scale_at[n][column] = min(n * 8 + lane_index() % 4 * 2 + column, count - 1) * blocks;
        }
    }

    KESTREL_DEVICE void load(const BlockWalk& at, uint32 (*words)[WORDS]) const {
        #pragma unroll
        for (int m = 0; m < 2; ++m)
            #pragma unroll
            for (int u = 0; u < WORDS; ++u)
                words[m][u] = *(const uint32*)(weights[m] + at.codes<BITS>() + u * UNIT_BYTES);
    }

    KESTREL_DEVICE Pair pair_of(const uint8* all, int m, const BlockWalk& at) const {
        return Pair::at(all + scales_at[m] + places.of(at), places);
    }

    KESTREL_DEVICE void add_block(const BlockWalk& at, const uint32 (*words)[WORDS]) {
        int block = at.block;
        uint32 a[2][4];
        #pragma unroll
        for (int m = 0; m < 2; ++m) Fragment<BITS>::of(words[m], a[m]);
        const Sum of[2] = {Sum(pair_of(args.weights.scales, 0, at), args.weights.narrow_scales),
                           Sum(pair_of(args.weights.scales, 1, at), args.weights.narrow_scales)};
        float moved[2][2];
        #pragma unroll
        for (int m = 0; m < 2; ++m)
            if (has_offsets) {
                Pair found = pair_of(args.weights.offsets, m, at);
                #pragma unroll
                for (int row = 0; row < 2; ++row) moved[m][row] = found.of(args.weights.narrow_scales, row);
            }
        int64 x = first * args.x.width + block * WARP;
        const float* x_scales = args.x.scales + first * blocks + block;
        const float* x_sums = args.x.sums + first * blocks + block;
        #pragma unroll
        for (int n = 0; n < COLUMNS; ++n) {
            if (n * 8 >= count) break;
            uint2 high = *(const uint2*)(args.x.high + x + x_at[n]), low = make_uint2(0, 0);
            if (PLANES == 2) low = *(const uint2*)(args.x.low + x + x_at[n]);
            uint32 b[2] = {high.x, high.y}, fine[2] = {low.x, low.y};
            float2 x_scale = make_float2(
                x_scales[scale_at[n][0]] * Sum::X_UNIT, x_scales[scale_at[n][1]] * Sum::X_UNIT
            );
            #pragma unroll
            for (int m = 0; m < 2; ++m) of[m].add(a[m], b, fine, x_scale, sums[m][n]);
            if (has_offsets) {
                float2 x_sum = make_float2(x_sums[scale_at[n][0]], x_sums[scale_at[n][1]]);
                #pragma unroll
                for (int m = 0; m < 2; ++m) add_offsets(moved[m], x_sum, x_scale, sums[m][n]);
            }
        }
    }

    // Leaves the stretch's sums in `sums`.
    KESTREL_DEVICE void add_stretch(int number) {
        #pragma unroll
        for (int m = 0; m < 2; ++m)
            #pragma unroll
            for (int n = 0; n < COLUMNS; ++n)
                #pragma unroll
                for (int i = 0; i < 4; ++i) sums[m][n][i] = 0.0f;
        BlockWalk at(args.weights);
        at.block = number * args.weights.stretch;
        at.stage = number / STRETCHES * args.weights.stretch, at.stretch = number % STRETCHES;
        int end = min(at.block + args.weights.stretch, blocks);
        if (at.block >= end) return;
        uint32 words[2][WORDS], next[2][WORDS];
        load(at, words);
        #pragma unroll 1
        for (; at.block < end; ++at.block, ++at.stage) {
            BlockWalk following = at;
            if (at.block + 1 < end) ++following.stage;
            load(following, next);
            add_block(at, words);
            #pragma unroll
            for (int m = 0; m < 2; ++m)
                #pragma unroll
                for (int u = 0; u < WORDS; ++u) words[m][u] = next[m][u];
        }
    }

    KESTREL_DEVICE void run(Parts& parts) {
        int stretches = divided_up(blocks, args.weights.stretch);
        #pragma unroll 1
        for (int first = 0; first < stretches; first += SHORT_WARPS) {
            add_stretch(first + warp_index());
            #pragma unroll
            for (int m = 0; m < 2; ++m) {
                #pragma unroll
                for (int n = 0; n < COLUMNS; ++n)
                    #pragma unroll
                    for (int i = 0; i < 4; ++i) parts[warp_index()][n * 4 + i][lane_index()] = sums[m][n][i];
                __syncthreads();
                for (int other = 0; other < min(SHORT_WARPS, stretches - first); ++other)
                    #pragma unroll
                    for (int i = 0; i < OWN; ++i)
                        totals[m][i] += parts[other][warp_index() * OWN + i][lane_index()];
                __syncthreads();
            }
        }
        store();
    }

    KESTREL_DEVICE void store() const {
        #pragma unroll
        for (int i = 0; i < OWN; ++i) {
            int number = warp_index() * OWN + i, place = number / 4 * 8 + lane_index() % 4 * 2 + number % 2;
            if (place >= count) continue;
            int row = lane_index() / 4 + number % 4 / 2 * 8;
            if (two.outputs[0] + row < args.num_outputs())
                store_output(place, two.outputs[0] + row, totals[0][i], totals[1][i]);
            if (!args.gated && two.outputs[1] + row < args.num_outputs())
                store_output(place, two.outputs[1] + row, totals[1][i], 0.0f);
        }
    }

    // `up` is that of the gate `sum`.
    KESTREL_DEVICE void store_output(int place, int output, float sum, float up) const {
        if (args.gated) sum = gated(sum, up);
        if (args.bias != nullptr) sum += args.bias[output];
        float* y = args.y + (first + place) * args.stride + output;
        *y = args.adds ? *y + sum : sum;
    }
};

// blockIdx.x: which rows; blockIdx.y: which outputs.
#define PRODUCT_OF_SHORT(name, bits, planes, plain, tokens)                                                           \
    KESTREL_KERNEL(name, SHORT_WARPS * 32, TiledProduct) {                                                            \
        __shared__ ShortRows<bits, planes, plain, tokens>::Parts parts;                                               \
        wait_for_previous();                                                                                          \
        ShortRows<bits, planes, plain, tokens>(args).run(parts);                                                      \
    }
#define PRODUCTS_OF_SHORT(name, bits, planes)                                                                         \
    PRODUCT_OF_SHORT(name##_short, bits, planes, true, 16)                                                            \
    PRODUCT_OF_SHORT(name##_turn, bits, planes, true, 64)                                                             \
    PRODUCT_OF_SHORT(name##_general16, bits, planes, false, 16)                                                       \
    PRODUCT_OF_SHORT(name##_general64, bits, planes, false, 64)

#if ONLY_BITS != 4
PRODUCTS_OF_SHORT(product_codes8_int8, 8, 1)
PRODUCTS_OF_SHORT(product_codes8_int8x2, 8, 2)
#endif
#if ONLY_BITS != 8
PRODUCTS_OF_SHORT(product_codes4_int8, 4, 1)
PRODUCTS_OF_SHORT(product_codes4_int8x2, 4, 2)
#endif
