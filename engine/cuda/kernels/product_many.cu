// Products of many rows with strips in tiles, on tensor cores: see tile_sums.cuh.
//
// A block makes WARPS * 32 outputs of TOKENS rows, a warp 32 outputs of all of them. Activations come through shared
// memory a few blocks of inputs at a time, a step ahead of their use, and so do weights, which each warp fetches
// for itself. Which tile of rows a row is in, and which kernel makes it, changes no bit of it.
#include "tile_sums.cuh"

// A step in shared memory: what belongs to one block of inputs after the other.
template <int BITS, int PLANES, bool PLAIN, int WARPS, int TOKENS>
struct SharedStep {
    static const int BLOCKS = BITS == 8 ? 2 : 4;
    static const int WORDS = Fragment<BITS>::WORDS;
    static const int X_PLANE = TOKENS * WARP;
    static const int SCALES = PLANES * X_PLANE;                    // of rows of activations
    static const int SUMS = SCALES + TOKENS * 4;                   // of their codes
    static const int WEIGHTS = SUMS + (PLAIN ? 0 : TOKENS * 4);    // by warp, tile and unit
    static const int TILE_WORDS = WORDS * PIECES_BYTES;
    static const int PREPARED = WEIGHTS + WARPS * 2 * TILE_WORDS;  // scales, by warp, tile, row r, and r + 8 with it
    static const int TILE_PREPARED = LANE_ROWS * 16;
    static const int END = PREPARED + (PLAIN ? WARPS * 2 * TILE_PREPARED : 0);
    // Whatever lanes next to each other copy of several blocks is in different banks.
    static const int BLOCK_BYTES = (END + 127) / 128 * 128 + 128 / BLOCKS;
    static const int BYTES = BLOCKS * BLOCK_BYTES;
};

// PLAIN: scales are float16, and there are no offsets.
template <int BITS, int PLANES, bool PLAIN, int WARPS, int TOKENS>
struct ManyRows {
    using Layout = SharedStep<BITS, PLANES, PLAIN, WARPS, TOKENS>;
    using Sum = BlockSum<BITS, PLANES, PLAIN>;
    using Pair = Scales<PLAIN>;
    static const int THREADS = WARPS * WARP, COLUMNS = TOKENS / 8, WORDS = Layout::WORDS, BLOCKS = Layout::BLOCKS;
    static const int CHUNKS_A_ROW = 2 * BLOCKS;  // of 16 bytes, of a plane in a step
    static const int ROWS_AT_ONCE = THREADS / CHUNKS_A_ROW;
    static const int COPIES = (TOKENS + ROWS_AT_ONCE - 1) / ROWS_AT_ONCE;  // of a thread, of a plane in a step
    static const int OWN_TILES = BLOCKS / 2;  // of which a lane copies a block's row r, and r + 8 with it
    static const int STORED_ROWS = TOKENS < 32 ? TOKENS : 32;  // at a time
    static const int STORED_WIDTH = 2 * TILE + 4;              // so that lanes write to different banks
    static_assert(TOKENS * BLOCKS <= THREADS, "a thread fetches at most one scale");
    static_assert(WARPS * STORED_ROWS * STORED_WIDTH * 4 <= 2 * Layout::BYTES, "sums fit in where steps were");

    const TiledProduct& args;
    const TwoTiles two;
    const ScalePlaces places;
    const StretchOfBlock stretch_of;
    const bool has_offsets;
    const int first, count;  // places of this block's rows
    const int blocks, steps;
    const uint8 *codes, *scales, *offsets;  // of the expert
    int fetched;                            // steps whose copies this thread has asked for
    SharedPlace x_to, words_to;             // where copies go
    // From the start of all rows, or of the expert's matrix, to what this thread copies next. An expert's matrix and all
    // rows of a plane have less than 4 GiB.
    uint32 x_at[COPIES], scale_at;
    uint32 own_codes[OWN_TILES], own_scales[OWN_TILES];
    Pair fetched_scales[OWN_TILES];
    float fetched_scale, fetched_sum;
    uint32 scales_at[2];  // of the tiles, where scales are read as they are used
    BlockWalk reads;      // of the next block there
    int left;             // blocks of this stretch
    float sums[2][COLUMNS][4], totals[2][COLUMNS][4];

    KESTREL_DEVICE int64 row_of_y(int place) const {
        return args.order != nullptr ? (int64)args.order[first + place] : (int64)first + place;
    }
    KESTREL_DEVICE uint32 row_of_x(int place) const {
        return (uint32)row_of_y(min(place, count - 1)) / args.rows_each;
    }

    KESTREL_DEVICE ManyRows(const TiledProduct& args, int expert, int first, int count)
        : args(args), two(args, blockIdx.y * WARPS + warp_index()), places(args.weights), stretch_of(args.weights),
          has_offsets(!PLAIN && args.weights.offsets != nullptr), first(first), count(count),
          blocks(args.weights.num_blocks()), steps(divided_up(blocks, BLOCKS)), codes(args.weights.codes),
          scales(args.weights.scales), offsets(args.weights.offsets), fetched(0), reads(args.weights),
          left(args.weights.stretch) {
        int64 tiles_before = (int64)expert * args.weights.num_tiles();
        codes += tiles_before * code_bytes();
        scales += tiles_before * scale_bytes();
        if (has_offsets) offsets += tiles_before * scale_bytes();
        #pragma unroll
        for (int i = 0; i < COPIES; ++i)
            x_at[i] = row_of_x(copied_row() + i * ROWS_AT_ONCE) * args.x.width + threadIdx.x % CHUNKS_A_ROW * 16;
        x_to = shared_place(dynamic_shared() + copied_block() * Layout::BLOCK_BYTES + copied_row() * WARP +
                            threadIdx.x % 2 * 16);
        words_to = shared_place(words(dynamic_shared() + own_block() * Layout::BLOCK_BYTES, own_tile(0)) +
                                lane_index() % LANE_ROWS * 16);
        scale_at = row_of_x(min((int)threadIdx.x / BLOCKS, TOKENS - 1)) * blocks + threadIdx.x % BLOCKS;
        #pragma unroll
        for (int i = 0; i < OWN_TILES; ++i) {
            int tile = own_tile(i) == 0 ? two.numbers[0] : two.numbers[1];
            own_codes[i] = tile * code_bytes();
            own_scales[i] = tile * scale_bytes() + lane_index() % LANE_ROWS * 4;
        }
        #pragma unroll
        for (int m = 0; m < 2; ++m) {
            scales_at[m] = two.numbers[m] * scale_bytes();
            #pragma unroll
            for (int n = 0; n < COLUMNS; ++n)
                #pragma unroll
                for (int i = 0; i < 4; ++i) totals[m][n][i] = -0.0f;
        }
    }

    // Which of a step's blocks, and of which row, this thread copies activations.
    KESTREL_DEVICE static int copied_block() { return threadIdx.x % CHUNKS_A_ROW / 2; }
    KESTREL_DEVICE static int copied_row() { return threadIdx.x / CHUNKS_A_ROW; }

    // Of which, and of which of its tiles, this lane copies weights.
    KESTREL_DEVICE static int own_block() { return lane_index() / LANE_ROWS % BLOCKS; }
    KESTREL_DEVICE static int own_tile(int i) { return OWN_TILES == 2 ? i : lane_index() / TILE; }

    // Of a tile.
    KESTREL_DEVICE uint32 code_bytes() const { return args.weights.num_stages() * (WORDS * UNIT_BYTES); }
    KESTREL_DEVICE uint32 scale_bytes() const { return (uint32)args.weights.tile_scales() * (places.pair / 2); }

    KESTREL_DEVICE Pair read_scales(const uint8* all, int m) const {
        return Pair::at(all + (scales_at[m] + places.of(reads)), places);
    }

    // A step's first block, and what this warp keeps in a block.
    KESTREL_DEVICE static unsigned char* shared(int step) { return dynamic_shared() + step % 2 * Layout::BYTES; }
    KESTREL_DEVICE static unsigned char* words(unsigned char* block, int m) {
        return block + Layout::WEIGHTS + (warp_index() * 2 + m) * Layout::TILE_WORDS;
    }
    KESTREL_DEVICE static float4* prepared(unsigned char* block, int m) {
        return (float4*)(block + Layout::PREPARED + (warp_index() * 2 + m) * Layout::TILE_PREPARED);
    }

    // Asks for the next step. `keep_scales` puts the rest of it to its place later.
    KESTREL_DEVICE void fetch() {
        if (fetched < steps) {
            uint32 to = fetched % 2 * Layout::BYTES;
            int block = BLOCKS * fetched;
            if (copied_row() < TOKENS && block + copied_block() < blocks) {
                #pragma unroll
                for (int i = 0; i < COPIES; ++i) {
                    SharedPlace row = x_to + to + i * ROWS_AT_ONCE * WARP;
                    copy_async16_to(row, args.x.high + x_at[i]);
                    if (PLANES == 2) copy_async16_to(row + Layout::X_PLANE, args.x.low + x_at[i]);
                }
            }
            #pragma unroll
            for (int i = 0; i < COPIES; ++i) x_at[i] += BLOCKS * WARP;
            fetch_weights(block + own_block(), words_to + to);
            fetched_scale = fetched_sum = 0.0f;  // beyond the last block, where weights are zeros
            if (threadIdx.x < TOKENS * BLOCKS && block + (int)threadIdx.x % BLOCKS < blocks) {
                fetched_scale = args.x.scales[scale_at];
                if (has_offsets) fetched_sum = args.x.sums[scale_at];
            }
            scale_at += BLOCKS;
        }
        commit_copies();
    }

    KESTREL_DEVICE void fetch_weights(int block, SharedPlace to) {
        int stretch = stretch_of.block(block), in_stretch = block - stretch * args.weights.stretch;
        int stage = stretch / STRETCHES * args.weights.stretch + in_stretch;
        uint32 at = stage * (WORDS * UNIT_BYTES) + piece_of(stretch % STRETCHES, lane_index() % LANE_ROWS) * 16;
        uint32 scale = places.is_shared ? block / 8 : stage * STRETCHES + stretch % STRETCHES;
        #pragma unroll
        for (int i = 0; i < OWN_TILES; ++i) {
            const uint8* from = codes + (own_codes[i] + at);
            #pragma unroll
            for (int u = 0; u < WORDS; ++u)
                copy_async16_to(to + (i * WORDS + u) * PIECES_BYTES, from + u * UNIT_BYTES);
            if (PLAIN) fetched_scales[i] = Pair::at(scales + (own_scales[i] + scale * (TILE * 2)), places);
        }
    }

    KESTREL_DEVICE void keep_scales() {
        unsigned char* to = shared(fetched);
        if (threadIdx.x < TOKENS * BLOCKS) {
            float* block = (float*)(to + threadIdx.x % BLOCKS * Layout::BLOCK_BYTES) + threadIdx.x / BLOCKS;
            block[Layout::SCALES / 4] = fetched_scale * Sum::X_UNIT;
            if (has_offsets) block[Layout::SUMS / 4] = fetched_sum;
        }
        if (PLAIN) {
            #pragma unroll
            for (int i = 0; i < OWN_TILES; ++i) {
                float4* row = prepared(to + own_block() * Layout::BLOCK_BYTES, own_tile(i)) + lane_index() % LANE_ROWS;
                *row = Sum::prepared(fetched_scales[i]);
            }
        }
        ++fetched;
    }

    KESTREL_DEVICE static void load_words(unsigned char* block, uint32 (*to)[WORDS]) {
        #pragma unroll
        for (int m = 0; m < 2; ++m)
            #pragma unroll
            for (int u = 0; u < WORDS; ++u)
                to[m][u] = ((const uint32*)(words(block, m) + u * PIECES_BYTES))[lane_index()];
    }

    KESTREL_DEVICE Sum sum_of(unsigned char* block, int m) const {
        if (PLAIN) return Sum(prepared(block, m)[lane_index() / 4]);
        return Sum(read_scales(scales, m), args.weights.narrow_scales);
    }

    // FIRST: of its stretch.
    template <bool FIRST>
    KESTREL_DEVICE void add_block(unsigned char* block, const uint32 (*loaded)[WORDS]) {
        const float* x_scales = (const float*)(block + Layout::SCALES) + lane_index() % 4 * 2;
        const unsigned char* x = block + lane_index() * 8;
        uint32 a[2][4];
        #pragma unroll
        for (int m = 0; m < 2; ++m) Fragment<BITS>::of(loaded[m], a[m]);
        const Sum of[2] = {sum_of(block, 0), sum_of(block, 1)};
        float moved[2][2];
        #pragma unroll
        for (int m = 0; m < 2; ++m)
            if (has_offsets) {
                Pair found = read_scales(offsets, m);
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
            for (int m = 0; m < 2; ++m) of[m].template add<FIRST>(a[m], b, fine, x_scale, sums[m][n]);
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
        #pragma unroll 1
        for (int step = 0; step < steps; ++step) {
            wait_copies<0>();
            __syncthreads();
            fetch();
            add_step(step);
            keep_scales();
        }
        if (left != args.weights.stretch) end_stretch();
        store();
    }

    KESTREL_DEVICE void add_step(int step) {
        uint32 loaded[2][WORDS], next[2][WORDS];
        unsigned char* at = shared(step);
        load_words(at, next);
        #pragma unroll 1
        for (int block = 0; block < BLOCKS; ++block, at += Layout::BLOCK_BYTES) {
            #pragma unroll
            for (int m = 0; m < 2; ++m)
                #pragma unroll
                for (int u = 0; u < WORDS; ++u) loaded[m][u] = next[m][u];
            if (block + 1 < BLOCKS) load_words(at + Layout::BLOCK_BYTES, next);
            if (left == args.weights.stretch)
                add_block<true>(at, loaded);
            else
                add_block<false>(at, loaded);
            if (!PLAIN && reads.block < BLOCKS * steps - 1) reads.advance(args.weights);
            if (--left == 0) end_stretch(), left = args.weights.stretch;
        }
    }

    KESTREL_DEVICE void end_stretch() {
        #pragma unroll
        for (int m = 0; m < 2; ++m)
            #pragma unroll
            for (int n = 0; n < COLUMNS; ++n)
                #pragma unroll
                for (int i = 0; i < 4; ++i) totals[m][n][i] += sums[m][n][i];
    }

    // By way of shared memory, so that a warp's 32 outputs of a row are stored together, and in a loop: unrolled for all
    // that a lane has, there would be more instructions than the rest takes.
    KESTREL_DEVICE void store() const {
        float* own = (float*)dynamic_shared() + warp_index() * (STORED_ROWS * STORED_WIDTH);
        #pragma unroll
        for (int start = 0; start < TOKENS; start += STORED_ROWS) {
            if (start == 0)
                __syncthreads();  // nobody reads the last step any more
            else
                __syncwarp();
            #pragma unroll
            for (int m = 0; m < 2; ++m)
                #pragma unroll
                for (int n = 0; n < STORED_ROWS / 8; ++n)
                    #pragma unroll
                    for (int i = 0; i < 4; ++i) {
                        int place = n * 8 + lane_index() % 4 * 2 + i % 2;
                        int output = m * TILE + i / 2 * LANE_ROWS + lane_index() / 4;
                        own[place * STORED_WIDTH + output] = totals[m][start / 8 + n][i];
                    }
            __syncwarp();
            if (args.gated)
                store_gated(own, start);
            else
                store_sums(own, start);
        }
    }

    // Two rows at a time, 16 gates with their ups each.
    KESTREL_DEVICE void store_gated(const float* own, int start) const {
        int output = two.outputs[0] + lane_index() % TILE, end = min(STORED_ROWS, count - start);
        if (output >= args.num_outputs()) return;
        #pragma unroll 1
        for (int place = lane_index() / TILE; place < end; place += 2) {
            const float* gates = own + place * STORED_WIDTH + lane_index() % TILE;
            store_tiled(args, row_of_y(start + place), output, gates[0], gates[TILE]);
        }
    }

    // A few rows at a time, so that what is added to comes for all of them at once.
    KESTREL_DEVICE void store_sums(const float* own, int start) const {
        static const int AT_ONCE = 8;
        int output = (lane_index() < TILE ? two.outputs[0] : two.outputs[1]) + lane_index() % TILE;
        int end = min(STORED_ROWS, count - start);
        if (output >= args.num_outputs()) return;
        float bias = args.bias != nullptr ? args.bias[output] : -0.0f;  // which changes nothing that it is added to
        #pragma unroll 1
        for (int place = 0; place < end; place += AT_ONCE) {
            float* y[AT_ONCE];
            float before[AT_ONCE];
            #pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) {
                y[i] = args.y + row_of_y(start + min(place + i, end - 1)) * args.stride + output;
                before[i] = args.adds ? *y[i] : -0.0f;
            }
            #pragma unroll
            for (int i = 0; i < AT_ONCE; ++i)
                if (place + i < end) *y[i] = before[i] + (own[(place + i) * STORED_WIDTH + lane_index()] + bias);
        }
    }
};

// blockIdx.x: which tile of rows; blockIdx.y: which outputs.
template <int BITS, int PLANES, bool PLAIN, int WARPS, int TOKENS>
KESTREL_DEVICE void product_of_many(const TiledProduct& args) {
    using Rows = ManyRows<BITS, PLANES, PLAIN, WARPS, TOKENS>;
    wait_for_previous();
    int expert = 0, first = blockIdx.x * TOKENS, count = min(TOKENS, args.rows - first);
    if (args.row_tiles != nullptr) {
        const int32* tile = args.row_tiles + 3 * (int64)blockIdx.x;
        expert = tile[0], first = tile[1], count = tile[2];
    }
    if (count <= 0) return;
    Rows(args, expert, first, count).run();
}

#define PRODUCT_OF_MANY(name, bits, planes, plain, warps, tokens, resident)                                           \
    KESTREL_KERNEL_SHARING(name, warps * 32, resident, TiledProduct) {                                                \
        product_of_many<bits, planes, plain, warps, tokens>(args);                                                    \
    }
#define PRODUCTS_OF_MANY(name, bits, planes)                                                                          \
    PRODUCT_OF_MANY(name##_large, bits, planes, true, 8, 64, 1)                                                       \
    PRODUCT_OF_MANY(name##_medium, bits, planes, true, 4, 32, ROOMY ? 3 : 2)                                          \
    PRODUCT_OF_MANY(name##_scattered, bits, planes, true, 4, 8, 5)                                                    \
    PRODUCT_OF_MANY(name##_general, bits, planes, false, 4, 32, ROOMY ? 3 : 2)

#if ONLY_BITS != 4
PRODUCTS_OF_MANY(product_codes8_int8, 8, 1)
PRODUCTS_OF_MANY(product_codes8_int8x2, 8, 2)
#endif
#if ONLY_BITS != 8
PRODUCTS_OF_MANY(product_codes4_int8, 4, 1)
PRODUCTS_OF_MANY(product_codes4_int8x2, 4, 2)
#endif
