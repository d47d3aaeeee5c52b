// Products of many rows with strips in tiles, on tensor cores: see tile_sums.cuh.
//
// A block makes WARPS * 32 outputs of TOKENS rows, a warp 32 outputs of all of them. Activations come through shared
// memory four blocks of inputs at a time, a step ahead of their use, and so do weights, which each lane fetches for
// itself. Which tile of rows a row is in, and which kernel makes it, changes no bit of it.
#include "tile_sums.cuh"

static const int QUAD = 4;  // blocks of inputs that are a step

// A step in shared memory.
template <int BITS, int PLANES, bool PLAIN, int WARPS, int TOKENS>
struct SharedStep {
    // The paddings keep the copies of a warp, and the reads of one, in different banks.
    static const int X_BLOCK = TOKENS * WARP + 32, X_PLANE = QUAD * X_BLOCK;
    static const int SCALES_ROW = TOKENS + 8;  // floats
    static const int WORDS = Fragment<BITS>::WORDS;
    static const int SCALES = PLANES * X_PLANE;
    static const int SUMS = SCALES + QUAD * SCALES_ROW * 4;
    static const int WEIGHTS = SUMS + (PLAIN ? 0 : QUAD * SCALES_ROW * 4);
    static const int BYTES = WEIGHTS + WARPS * 2 * QUAD * WORDS * PIECES_BYTES;
};

// PLAIN: scales are float16, and there are no offsets. GROUPED: rows may have experts of their own.
template <int BITS, int PLANES, bool PLAIN, int WARPS, int TOKENS, bool GROUPED>
struct ManyRows {
    using Layout = SharedStep<BITS, PLANES, PLAIN, WARPS, TOKENS>;
    using Sum = BlockSum<BITS, PLANES, PLAIN>;
    using Pair = Scales<PLAIN>;
    static const int THREADS = WARPS * WARP, COLUMNS = TOKENS / 8, WORDS = Layout::WORDS;
    static const int CHUNKS = TOKENS * 8;                        // of 16 bytes, of a plane in a step
    static const int COPIES = (CHUNKS + THREADS - 1) / THREADS;  // of a thread, of a plane in a step
    static_assert(TOKENS * QUAD <= THREADS, "a thread fetches at most one scale");

    const TiledProduct& args;
    const TwoTiles two;
    const ScalePlaces places;
    const bool has_offsets;
    const int first, count;  // places of this block's rows
    const int blocks, steps;
    int64 expert_codes, expert_scales;  // bytes of the experts before this one
    int fetched;                        // steps whose copies this thread has asked for
    // From the start of all rows, or of the expert's matrix, to what this thread reads next. An expert's matrix and all
    // rows of a plane have less than 4 GiB.
    uint32 x_at[COPIES], weights_at[WORDS / 2], scale_at;
    uint32 scales_at[2];     // of the tiles
    BlockWalk fetches, reads;  // codes of the next step; scales of the next block
    float next_scale, next_sum;
    float sums[2][COLUMNS][4], totals[2][COLUMNS][4];

    KESTREL_DEVICE int64 row_of_y(int place) const {
        return GROUPED && args.order != nullptr ? (int64)args.order[first + place] : (int64)first + place;
    }
    KESTREL_DEVICE uint32 row_of_x(int place) const {
        return (uint32)row_of_y(min(place, count - 1)) / (GROUPED ? args.rows_each : 1);
    }

    KESTREL_DEVICE ManyRows(const TiledProduct& args, int expert, int first, int count)
        : args(args), two(args, blockIdx.y * WARPS + warp_index()), places(args.weights),
          has_offsets(!PLAIN && args.weights.offsets != nullptr), first(first), count(count),
          blocks(args.weights.num_blocks()), steps(divided_up(blocks, QUAD)), fetched(0), fetches(args.weights),
          reads(args.weights) {
        int64 tiles_before = GROUPED ? (int64)expert * args.weights.num_tiles() : 0;
        expert_codes = tiles_before * code_bytes();
        expert_scales = tiles_before * scale_bytes();
        #pragma unroll
        for (int i = 0; i < COPIES; ++i) {
            int chunk = min((int)threadIdx.x + i * THREADS, CHUNKS - 1);
            x_at[i] = row_of_x(chunk / 8) * args.x.width + chunk % 8 * 16;
        }
        #pragma unroll
        for (int i = 0; i < WORDS / 2; ++i) {
            int unit = lane_index() / LANE_ROWS % WORDS, tile = tile_of_copy(i) ? two.numbers[1] : two.numbers[0];
            weights_at[i] = tile * code_bytes() + unit * UNIT_BYTES + lane_index() % LANE_ROWS * 16;
        }
        scale_at = row_of_x(min((int)threadIdx.x / QUAD, TOKENS - 1)) * blocks + threadIdx.x % QUAD;
        #pragma unroll
        for (int m = 0; m < 2; ++m) {
            scales_at[m] = two.numbers[m] * scale_bytes();
            #pragma unroll
            for (int n = 0; n < COLUMNS; ++n)
                #pragma unroll
                for (int i = 0; i < 4; ++i) sums[m][n][i] = 0.0f, totals[m][n][i] = -0.0f;
        }
    }

    // Of which of the two tiles a lane's copy is: with 4 bits half of the lanes copy from each.
    KESTREL_DEVICE static int tile_of_copy(int i) { return WORDS == 2 ? lane_index() / 16 : i; }

    // Of a tile.
    KESTREL_DEVICE uint32 code_bytes() const { return args.weights.num_stages() * (WORDS * UNIT_BYTES); }
    KESTREL_DEVICE uint32 scale_bytes() const { return (uint32)args.weights.tile_scales() * (places.pair / 2); }

    KESTREL_DEVICE const uint8* own_scales(const uint8* all, int m) const {
        return all + expert_scales + (scales_at[m] + places.of(reads));
    }

    KESTREL_DEVICE static unsigned char* shared(int step) { return dynamic_shared() + step % 2 * Layout::BYTES; }

    // Where this warp keeps words of a tile's block, by unit and row.
    KESTREL_DEVICE static unsigned char* words(int step, int m, int block) {
        return shared(step) + Layout::WEIGHTS + ((warp_index() * 2 + m) * QUAD + block) * (WORDS * PIECES_BYTES);
    }

    // Asks for the next step. `keep_scales` puts the rest of it to its place later.
    KESTREL_DEVICE void fetch() {
        if (fetched < steps) {
            unsigned char* to = shared(fetched);
            int here = blocks - QUAD * fetched;
            #pragma unroll
            for (int i = 0; i < COPIES; ++i) {
                int chunk = threadIdx.x + i * THREADS, block = chunk % 8 / 2;
                int at = block * Layout::X_BLOCK + chunk / 8 * WARP + chunk % 2 * 16;
                if ((CHUNKS % THREADS == 0 || chunk < CHUNKS) && block < here) {
                    copy_async16(to + at, args.x.high + x_at[i]);
                    if (PLANES == 2) copy_async16(to + Layout::X_PLANE + at, args.x.low + x_at[i]);
                }
                x_at[i] += QUAD * WARP;
            }
            #pragma unroll
            for (int block = 0; block < QUAD; ++block) {
                const uint8* codes = args.weights.codes + expert_codes + fetches.codes<BITS>();
                #pragma unroll
                for (int i = 0; i < WORDS / 2; ++i) {
                    int at = lane_index() % (WORDS * LANE_ROWS) * 16;
                    copy_async16(words(fetched, tile_of_copy(i), block) + at, codes + weights_at[i]);
                }
                fetches.advance(args.weights);
            }
            next_scale = next_sum = 0.0f;  // beyond the last block, where weights are zeros
            if (threadIdx.x < TOKENS * QUAD && threadIdx.x % QUAD < here) {
                next_scale = args.x.scales[scale_at];
                if (has_offsets) next_sum = args.x.sums[scale_at];
            }
            scale_at += QUAD;
        }
        commit_copies();
    }

    KESTREL_DEVICE void keep_scales() {
        if (threadIdx.x < TOKENS * QUAD) {
            int at = threadIdx.x % QUAD * Layout::SCALES_ROW + threadIdx.x / QUAD;
            ((float*)(shared(fetched) + Layout::SCALES))[at] = next_scale * Sum::X_UNIT;
            if (has_offsets) ((float*)(shared(fetched) + Layout::SUMS))[at] = next_sum;
        }
        ++fetched;
    }

    // known: the block's scales, where they came before.
    KESTREL_DEVICE Sum sum_of(int m, const Pair* known) const {
        if (PLAIN) return Sum(known[m], true);
        return Sum(Pair::at(own_scales(args.weights.scales, m), places), args.weights.narrow_scales);
    }

    KESTREL_DEVICE void add_block(int step, int block, const Pair* known) {
        const unsigned char* from = shared(step);
        const float* x_scales = (const float*)(from + Layout::SCALES) + block * Layout::SCALES_ROW;
        x_scales += lane_index() % 4 * 2;
        const unsigned char* x = from + block * Layout::X_BLOCK + lane_index() * 8;
        uint32 a[2][4];
        #pragma unroll
        for (int m = 0; m < 2; ++m) {
            uint32 loaded[WORDS];
            #pragma unroll
            for (int u = 0; u < WORDS; ++u)
                loaded[u] = ((const uint32*)(words(step, m, block) + u * PIECES_BYTES))[lane_index()];
            Fragment<BITS>::of(loaded, a[m]);
        }
        const Sum of[2] = {sum_of(0, known), sum_of(1, known)};
        float moved[2][2];
        #pragma unroll
        for (int m = 0; m < 2; ++m)
            if (has_offsets) {
                Pair found = Pair::at(own_scales(args.weights.offsets, m), places);
                #pragma unroll
                for (int row = 0; row < 2; ++row) moved[m][row] = found.of(args.weights.narrow_scales, row);
            }
        #pragma unroll
        for (int n = 0; n < COLUMNS; ++n) {
            uint2 high = *(const uint2*)(x + n * 8 * WARP), low = make_uint2(0, 0);
            if (PLANES == 2) low = *(const uint2*)(x + Layout::X_PLANE + n * 8 * WARP);
            uint32 b[2] = {high.x, high.y}, fine[2] = {low.x, low.y};
            float2 x_scale = *(const float2*)(x_scales + n * 8);
            #pragma unroll
            for (int m = 0; m < 2; ++m) of[m].add(a[m], b, fine, x_scale, sums[m][n]);
            if (has_offsets) {
                float2 x_sum = *(const float2*)(x_scales + (Layout::SUMS - Layout::SCALES) / 4 + n * 8);
                #pragma unroll
                for (int m = 0; m < 2; ++m) add_offsets(moved[m], x_sum, x_scale, sums[m][n]);
            }
        }
    }

    KESTREL_DEVICE void run() {
        fetch();
        keep_scales();
        Pair scale[2], next_scale[2];
        read_scales(scale);
        int left = args.weights.stretch;
        #pragma unroll 1
        for (int step = 0; step < steps; ++step) {
            wait_copies<0>();
            __syncthreads();
            fetch();
            // Several blocks at a time where few warps are there: it keeps them busy, and takes registers.
            #pragma unroll(COLUMNS == 8 ? 2 : 1)
            for (int block = 0; block < QUAD; ++block) {
                if (PLAIN && reads.block < QUAD * steps - 1) reads.advance(args.weights);
                read_scales(next_scale);
                add_block(step, block, scale);
                if (!PLAIN && reads.block < QUAD * steps - 1) reads.advance(args.weights);
                #pragma unroll
                for (int m = 0; m < 2; ++m)
                    if (PLAIN) scale[m] = next_scale[m];
                if (--left == 0) end_stretch(), left = args.weights.stretch;
            }
            keep_scales();
        }
        if (left != args.weights.stretch) end_stretch();
        store();
    }

    // Those of the next block come while one is computed.
    KESTREL_DEVICE void read_scales(Pair* to) const {
        #pragma unroll
        for (int m = 0; m < 2; ++m)
            if (PLAIN) to[m] = Pair::at(own_scales(args.weights.scales, m), places);
    }

    KESTREL_DEVICE void end_stretch() {
        #pragma unroll
        for (int m = 0; m < 2; ++m)
            #pragma unroll
            for (int n = 0; n < COLUMNS; ++n)
                #pragma unroll
                for (int i = 0; i < 4; ++i) totals[m][n][i] += sums[m][n][i], sums[m][n][i] = 0.0f;
    }

    KESTREL_DEVICE void store() const {
        int lane = lane_index(), made = args.gated ? 1 : 2;
        #pragma unroll
        for (int n = 0; n < COLUMNS; ++n)
            #pragma unroll
            for (int column = 0; column < 2; ++column) {
                int place = n * 8 + lane % 4 * 2 + column;
                if (place >= count) continue;
                int64 row = row_of_y(place);
                #pragma unroll
                for (int half = 0; half < 2; ++half) {
                    float first_sum = totals[0][n][2 * half + column], second = totals[1][n][2 * half + column];
                    int output = two.outputs[0] + lane / 4 + 8 * half;
                    if (output < args.num_outputs()) store_tiled(args, row, output, first_sum, second);
                    output = two.outputs[1] + lane / 4 + 8 * half;
                    if (made == 2 && output < args.num_outputs()) store_tiled(args, row, output, second, 0.0f);
                }
            }
    }
};

// blockIdx.x: which tile of rows; blockIdx.y: which outputs.
template <int BITS, int PLANES, bool PLAIN, int WARPS, int TOKENS, bool GROUPED>
KESTREL_DEVICE void product_of_many(const TiledProduct& args) {
    using Rows = ManyRows<BITS, PLANES, PLAIN, WARPS, TOKENS, GROUPED>;
    wait_for_previous();
    int expert = 0, first = blockIdx.x * TOKENS, count = min(TOKENS, args.rows - first);
    if (GROUPED && args.row_tiles != nullptr) {
        const int32* tile = args.row_tiles + 3 * (int64)blockIdx.x;
        expert = tile[0], first = tile[1], count = tile[2];
    }
    if (count <= 0) return;
    Rows(args, expert, first, count).run();
}

#define PRODUCT_OF_MANY(name, bits, planes, plain, warps, tokens, grouped, resident)                                  \
    KESTREL_KERNEL_SHARING(name, warps * 32, resident, TiledProduct) {                                                \
        product_of_many<bits, planes, plain, warps, tokens, grouped>(args);                                           \
    }
#define PRODUCTS_OF_MANY(name, bits, planes)                                                                          \
    PRODUCT_OF_MANY(name##_large, bits, planes, true, 8, 64, false, 1)                                                \
    PRODUCT_OF_MANY(name##_medium, bits, planes, true, 4, 32, true, 3)                                                \
    PRODUCT_OF_MANY(name##_scattered, bits, planes, true, 4, 8, true, 5)                                              \
    PRODUCT_OF_MANY(name##_general, bits, planes, false, 4, 32, true, 3)

#if ONLY_BITS != 4
PRODUCTS_OF_MANY(product_codes8_int8, 8, 1)
PRODUCTS_OF_MANY(product_codes8_int8x2, 8, 2)
#endif
#if ONLY_BITS != 8
PRODUCTS_OF_MANY(product_codes4_int8, 4, 1)
PRODUCTS_OF_MANY(product_codes4_int8x2, 4, 2)
#endif
