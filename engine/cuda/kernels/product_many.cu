// Products of many rows with strips in tiles, on tensor cores: see tile_sums.cuh.
//
// A warp makes 32 outputs, a stripe, of TOKENS rows; or two warps share a stripe, and have half of the rows each.
// Activations come through shared memory a few blocks of inputs at a time, a step ahead of their use, and so do weights.
// Which tile of rows a row is in, and which kernel makes it, changes no bit of it.
#include "many_outputs.cuh"

// A step in shared memory: what belongs to one block of inputs after the other.
template <int BITS, int PLANES, bool PLAIN, int STRIPES, int TOKENS>
struct SharedStep {
    static const int BLOCKS = BITS == 8 ? 2 : 4;
    static const int WORDS = Fragment<BITS>::WORDS;
    static const int X_PLANE = TOKENS * WARP;
    static const int SCALES = PLANES * X_PLANE;                    // of rows of activations
    static const int SUMS = SCALES + TOKENS * 4;                   // of their codes
    static const int WEIGHTS = SUMS + (PLAIN ? 0 : TOKENS * 4);    // by stripe, tile and unit
    static const int TILE_WORDS = WORDS * PIECES_BYTES;
    static const int PREPARED = WEIGHTS + STRIPES * 2 * TILE_WORDS;  // scales, by stripe, tile, row r, with it r + 8
    static const int TILE_PREPARED = LANE_ROWS * 16;
    static const int END = PREPARED + (PLAIN ? STRIPES * 2 * TILE_PREPARED : 0);
    // Whatever lanes next to each other copy of several blocks is in different banks.
    static const int BLOCK_BYTES = (END + 127) / 128 * 128 + 128 / BLOCKS;
    static const int BYTES = BLOCKS * BLOCK_BYTES;
};

// PLAIN: scales are float16, and there are no offsets. WARPS: of a block. SHARING: of these, how many have the same
// stripe; one half of the warps copies rows then, and the other one weights.
template <int BITS, int PLANES, bool PLAIN, int WARPS, int SHARING, int TOKENS>
struct ManyRows {
    static const int STRIPES = WARPS / SHARING;
    using Layout = SharedStep<BITS, PLANES, PLAIN, STRIPES, TOKENS>;
    using Sum = BlockSum<BITS, PLANES, PLAIN>;
    using Pair = Scales<PLAIN>;
    static const int THREADS = WARPS * WARP, WORDS = Layout::WORDS, BLOCKS = Layout::BLOCKS;
    using Outputs = ManyOutputs<WARPS, STRIPES, TOKENS, 2 * Layout::BYTES>;
    static const int OWN_TOKENS = Outputs::OWN_TOKENS, COLUMNS = Outputs::COLUMNS;
    static const int COPIERS = THREADS / SHARING;  // threads that copy rows; as many copy weights
    static const int CHUNKS_A_ROW = 2 * BLOCKS;    // of 16 bytes, of a plane in a step
    static const int ROWS_AT_ONCE = COPIERS / CHUNKS_A_ROW;
    static const int COPIES = (TOKENS + ROWS_AT_ONCE - 1) / ROWS_AT_ONCE;  // of a thread, of a plane in a step
    static const int SCALES = (TOKENS * BLOCKS + COPIERS - 1) / COPIERS;   // of rows, of a thread in a step
    static const int OWN_TILES = BLOCKS / 2;  // of which a lane copies a block's row r, and r + 8 with it
    static const int PLACES = COPIES > OWN_TILES + 2 ? COPIES : OWN_TILES + 2;
    static const int ROWS_FOUND = PLAIN ? SCALES : 2 * SCALES, PAIRS_FOUND = PLAIN ? OWN_TILES : 0;
    static_assert(SHARING <= 2 && STRIPES * SHARING == WARPS, "warps share alone or in pairs");
    static_assert(SCALES == 1 || SCALES * COPIERS == TOKENS * BLOCKS, "scales are dealt out evenly");

    // What a thread remembers of its copies of rows, or of weights. In one form for both: who copies only one of them has
    // no registers for the other.
    struct Copies {
        SharedPlace to;
        uint32 from[PLACES];         // rows: in bytes from the first (a plane has less than 4 GiB); weights: which tiles
        uint32 scales_from[SCALES];  // rows
        uint32 found[ROWS_FOUND > PAIRS_FOUND ? ROWS_FOUND : PAIRS_FOUND];  // rows: scales, then sums; weights: scales
    };

    const TiledProduct& args;
    const ScalePlaces places;
    const StretchOfBlock stretch_of;
    const bool has_offsets;
    const int blocks;
    const uint8 *scales, *offsets;  // of the expert, where scales are read as they are used
    int fetched;                    // steps whose copies this thread has asked for
    Copies copies[SHARING > 1 ? 1 : 2];
    struct {
        uint32 x, x_scales, words, prepared;
    } own;  // where this lane finds what it needs, in a block in shared memory
    uint32 scales_at[2];  // of the tiles
    BlockWalk reads;      // of the next block there
    int left;             // blocks of this stretch
    float sums[2][COLUMNS][4], totals[2][COLUMNS][4];

    KESTREL_DEVICE ManyRows(const TiledProduct& args, const RowsOfBlock& tile)
        : args(args), places(args.weights), stretch_of(args.weights),
          has_offsets(!PLAIN && args.weights.offsets != nullptr), blocks(args.weights.num_blocks()),
          scales(args.weights.scales), offsets(args.weights.offsets), fetched(0), reads(args.weights),
          left(args.weights.stretch) {
        TwoTiles two(args, blockIdx.y * STRIPES + stripe());
        int64 tiles_before = (int64)tile.expert * args.weights.num_tiles();
        scales += tiles_before * scale_bytes();
        if (has_offsets) offsets += tiles_before * scale_bytes();
        own.x = part() * (OWN_TOKENS * WARP) + lane_index() * 8;
        own.x_scales = Layout::SCALES + (part() * OWN_TOKENS + lane_index() % 4 * 2) * 4;
        own.words = Layout::WEIGHTS + stripe() * 2 * Layout::TILE_WORDS + lane_index() * 4;
        own.prepared = Layout::PREPARED + stripe() * 2 * Layout::TILE_PREPARED +
                       lane_index() / 4 * Sum::PREPARED_BYTES;
        keep_in_register(own.x);  // else they are worked out anew for each block
        keep_in_register(own.words);
        keep_in_register(own.prepared);
        if (copies_rows()) begin_rows(tile);
        if (copies_weights()) begin_weights(two, (int)tiles_before);
        #pragma unroll
        for (int m = 0; m < 2; ++m) {
            scales_at[m] = two.numbers[m] * scale_bytes();
            #pragma unroll
            for (int n = 0; n < COLUMNS; ++n)
                #pragma unroll
                for (int i = 0; i < 4; ++i) totals[m][n][i] = -0.0f, sums[m][n][i] = 0.0f;
        }
    }

    // Where warps share stripes, half of them copy rows, and the others weights.
    KESTREL_DEVICE static bool copies_rows() { return SHARING == 1 || part() == 0; }
    KESTREL_DEVICE static bool copies_weights() { return SHARING == 1 || part() == 1; }
    KESTREL_DEVICE Copies& rows() { return copies[0]; }
    KESTREL_DEVICE Copies& weights() { return copies[SHARING > 1 ? 0 : 1]; }

    KESTREL_DEVICE void begin_rows(const RowsOfBlock& tile) {
        #pragma unroll
        for (int i = 0; i < COPIES; ++i)
            rows().from[i] = row_of_x(tile, copied_row() + i * ROWS_AT_ONCE) * args.x.width +
                             copier() % CHUNKS_A_ROW * 16;
        #pragma unroll
        for (int i = 0; i < SCALES; ++i)
            rows().scales_from[i] = row_of_x(tile, min(scaled_row(i), TOKENS - 1)) * blocks + copier() % BLOCKS;
        rows().to = shared_place(dynamic_shared() + copied_block() * Layout::BLOCK_BYTES + copied_row() * WARP +
                                 copier() % 2 * 16);
    }

    KESTREL_DEVICE void begin_weights(const TwoTiles& two, int tiles_before) {
        #pragma unroll
        for (int i = 0; i < OWN_TILES; ++i)
            weights().from[i] = tiles_before + (own_tile(i) == 0 ? two.numbers[0] : two.numbers[1]);
        weights().to = shared_place(words(dynamic_shared() + own_block() * Layout::BLOCK_BYTES, own_tile(0)) +
                                    lane_index() % LANE_ROWS * 16);
        place_weights(own_block());
    }

    KESTREL_DEVICE uint32 row_of_x(const RowsOfBlock& tile, int place) const {
        return (uint32)tile.row_of_y(args, min(place, tile.count - 1)) / args.rows_each;
    }

    KESTREL_DEVICE static int stripe() { return Outputs::stripe(); }
    KESTREL_DEVICE static int part() { return Outputs::part(); }

    // Which of those that copy rows a thread is, of which of a step's blocks, and of which row.
    KESTREL_DEVICE static int copier() { return threadIdx.x % COPIERS; }
    KESTREL_DEVICE static int copied_block() { return copier() % CHUNKS_A_ROW / 2; }
    KESTREL_DEVICE static int copied_row() { return copier() / CHUNKS_A_ROW; }
    KESTREL_DEVICE static int scaled_row(int i) { return copier() / BLOCKS + i * (COPIERS / BLOCKS); }

    // Of which, and of which of its tiles, this lane copies weights.
    KESTREL_DEVICE static int own_block() { return lane_index() / LANE_ROWS % BLOCKS; }
    KESTREL_DEVICE static int own_tile(int i) { return OWN_TILES == 2 ? i : lane_index() / TILE; }

    // Of a tile.
    KESTREL_DEVICE uint32 code_bytes() const { return args.weights.num_stages() * (WORDS * UNIT_BYTES); }
    KESTREL_DEVICE uint32 scale_bytes() const {
        uint32 scales = (places.is_shared ? blocks / 8 : args.weights.num_stages() * STRETCHES) * TILE;
        return scales * (PLAIN ? 2 : places.pair / 2);
    }

    KESTREL_DEVICE Pair read_scales(const uint8* all, int m) const {
        return Pair::at(all + (scales_at[m] + places.of(reads)), places);
    }

    // A step's first block, and what this warp keeps in a block.
    KESTREL_DEVICE static unsigned char* shared(int step) { return dynamic_shared() + step % 2 * Layout::BYTES; }
    KESTREL_DEVICE static unsigned char* words(unsigned char* block, int m) {
        return block + Layout::WEIGHTS + (stripe() * 2 + m) * Layout::TILE_WORDS;
    }
    KESTREL_DEVICE static unsigned char* prepared(unsigned char* block, int m) {
        return block + Layout::PREPARED + (stripe() * 2 + m) * Layout::TILE_PREPARED;
    }

    // Asks for the next step. `keep_scales` puts the rest of it to its place later.
    KESTREL_DEVICE void fetch() {
        if (BLOCKS * fetched < blocks) {
            if (copies_rows()) fetch_rows(BLOCKS * fetched, fetched % 2 * Layout::BYTES);
            if (copies_weights()) fetch_weights(BLOCKS * fetched + own_block(), fetched % 2 * Layout::BYTES);
        }
        commit_copies();
    }

    KESTREL_DEVICE void fetch_rows(int block, uint32 to) {
        if (copied_row() < TOKENS && block + copied_block() < blocks) {
            #pragma unroll
            for (int i = 0; i < COPIES; ++i) {
                SharedPlace row = rows().to + to + i * ROWS_AT_ONCE * WARP;
                copy_async16_to(row, args.x.high + rows().from[i]);
                if (PLANES == 2) copy_async16_to(row + Layout::X_PLANE, args.x.low + rows().from[i]);
            }
        }
        #pragma unroll
        for (int i = 0; i < COPIES; ++i) rows().from[i] += BLOCKS * WARP;
        bool is_there = copier() < TOKENS * BLOCKS && block + copier() % BLOCKS < blocks;
        #pragma unroll
        for (int i = 0; i < SCALES; ++i) {
            float scale = 0.0f, sum = 0.0f;  // beyond the last block, where weights are zeros
            if (is_there) {
                scale = args.x.scales[rows().scales_from[i]];
                if (has_offsets) sum = args.x.sums[rows().scales_from[i]];
            }
            rows().found[i] = __float_as_uint(scale);
            if (!PLAIN) rows().found[SCALES + i] = __float_as_uint(sum);
            rows().scales_from[i] += BLOCKS;
        }
    }

    KESTREL_DEVICE void fetch_weights(int block, uint32 to) {
        #pragma unroll
        for (int i = 0; i < OWN_TILES; ++i) {
            uint64 tile = weights().from[i];
            const uint8* from = args.weights.codes + (tile * code_bytes() + codes_at());
            #pragma unroll
            for (int u = 0; u < WORDS; ++u)
                copy_async16_to(weights().to + to + (i * WORDS + u) * PIECES_BYTES, from + u * UNIT_BYTES);
            if (PLAIN)
                weights().found[i] = *(const uint32*)(args.weights.scales + (tile * scale_bytes() + prepared_at()));
        }
        codes_left() -= BLOCKS;
        if (codes_left() > 0 && !places.is_shared)
            codes_at() += BLOCKS * WORDS * UNIT_BYTES, prepared_at() += BLOCKS * STRETCHES * TILE * 2;
        else
            place_weights(block + BLOCKS);
    }

    // Where a tile has what this lane copies of a block, and how many more there are of its stretch, this one among them.
    KESTREL_DEVICE void place_weights(int block) {
        int stretch = stretch_of.block(block), in_stretch = block - stretch * args.weights.stretch;
        int stage = stretch / STRETCHES * args.weights.stretch + in_stretch;
        codes_at() = stage * (WORDS * UNIT_BYTES) + piece_of(stretch % STRETCHES, lane_index() % LANE_ROWS) * 16;
        uint32 scale = places.is_shared ? block / 8 : stage * STRETCHES + stretch % STRETCHES;
        prepared_at() = scale * (TILE * 2) + lane_index() % LANE_ROWS * 4;
        codes_left() = args.weights.stretch - in_stretch;
    }

    // In registers that who copies rows needs for these.
    KESTREL_DEVICE uint32& codes_at() { return weights().from[OWN_TILES]; }
    KESTREL_DEVICE int& codes_left() { return (int&)weights().from[OWN_TILES + 1]; }
    KESTREL_DEVICE uint32& prepared_at() { return weights().scales_from[0]; }

    KESTREL_DEVICE void keep_scales() {
        unsigned char* to = shared(fetched);
        if (copies_rows() && copier() < TOKENS * BLOCKS) {
            #pragma unroll
            for (int i = 0; i < SCALES; ++i) {
                float* block = (float*)(to + copier() % BLOCKS * Layout::BLOCK_BYTES) + scaled_row(i);
                block[Layout::SCALES / 4] = __uint_as_float(rows().found[i]) * Sum::X_UNIT;
                if (has_offsets) block[Layout::SUMS / 4] = __uint_as_float(rows().found[ROWS_FOUND - SCALES + i]);
            }
        }
        if (PLAIN && copies_weights()) {
            #pragma unroll
            for (int i = 0; i < OWN_TILES; ++i) {
                unsigned char* tile = prepared(to + own_block() * Layout::BLOCK_BYTES, own_tile(i));
                Sum::keep(Pair{{weights().found[i]}}, tile + lane_index() % LANE_ROWS * Sum::PREPARED_BYTES);
            }
        }
        ++fetched;
    }

    KESTREL_DEVICE Sum sum_of(const unsigned char* block, int m) const {
        if (PLAIN) return Sum((const void*)(block + own.prepared + m * Layout::TILE_PREPARED));
        return Sum(read_scales(scales, m), args.weights.narrow_scales);
    }

    KESTREL_DEVICE void add_block(unsigned char* block) {
        uint32 a[2][4];
        #pragma unroll
        for (int m = 0; m < 2; ++m) {
            uint32 words[WORDS];
            #pragma unroll
            for (int u = 0; u < WORDS; ++u)
                words[u] = *(const uint32*)(block + own.words + m * Layout::TILE_WORDS + u * PIECES_BYTES);
            Fragment<BITS>::of(words, a[m]);
        }
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
            const unsigned char *x = block + own.x + n * 8 * WARP, *x_scales = block + own.x_scales + n * 8 * 4;
            uint2 high = *(const uint2*)x, low = make_uint2(0, 0);
            if (PLANES == 2) low = *(const uint2*)(x + Layout::X_PLANE);
            uint32 b[2] = {high.x, high.y}, fine[2] = {low.x, low.y};
            float2 x_scale = *(const float2*)x_scales;
            #pragma unroll
            for (int m = 0; m < 2; ++m) of[m].add(a[m], b, fine, x_scale, sums[m][n]);
            if (has_offsets) {
                float2 x_sum = *(const float2*)(x_scales + Layout::SUMS - Layout::SCALES);
                #pragma unroll
                for (int m = 0; m < 2; ++m) add_offsets(moved[m], x_sum, x_scale, sums[m][n]);
            }
        }
    }

    KESTREL_DEVICE void run() {
        fetch();
        keep_scales();
        #pragma unroll 1
        for (int step = 0; BLOCKS * step < blocks; ++step) {
            wait_copies<0>();
            __syncthreads();
            fetch();
            add_step(step);
            keep_scales();
        }
        if (left != args.weights.stretch) end_stretch();
        Outputs::store(args, RowsOfBlock(args, TOKENS), totals);
    }

    KESTREL_DEVICE void add_step(int step) {
        unsigned char* at = shared(step);
        int rest = BLOCKS;
        #pragma unroll 1
        while (rest > 0) {
            int run = min(left, rest);
            rest -= run, left -= run;
            #pragma unroll 1
            for (; run > 0; --run, at += Layout::BLOCK_BYTES) {
                add_block(at);
                if (!PLAIN && reads.block + 1 < divided_up(blocks, BLOCKS) * BLOCKS) reads.advance(args.weights);
            }
            if (left == 0) end_stretch(), left = args.weights.stretch;
        }
    }

    KESTREL_DEVICE void end_stretch() {
        #pragma unroll
        for (int m = 0; m < 2; ++m)
            #pragma unroll
            for (int n = 0; n < COLUMNS; ++n)
                #pragma unroll
                for (int i = 0; i < 4; ++i) totals[m][n][i] += sums[m][n][i], sums[m][n][i] = 0.0f;
    }
};

// blockIdx.x: which tile of rows; blockIdx.y: which outputs.
template <int BITS, int PLANES, bool PLAIN, int WARPS, int SHARING, int TOKENS>
KESTREL_DEVICE void product_of_many(const TiledProduct& args) {
    using Rows = ManyRows<BITS, PLANES, PLAIN, WARPS, SHARING, TOKENS>;
    wait_for_previous();
    const RowsOfBlock tile(args, TOKENS);
    if (tile.count > 0) Rows(args, tile).run();
}

#define PRODUCT_OF_MANY(name, bits, planes, plain, warps, sharing, tokens, resident)                                  \
    KESTREL_KERNEL_SHARING(name, warps * 32, resident, TiledProduct) {                                                \
        product_of_many<bits, planes, plain, warps, sharing, tokens>(args);                                           \
    }
#define PRODUCTS_OF_MANY(name, bits, planes)                                                                          \
    PRODUCT_OF_MANY(name##_large, bits, planes, true, 8, 2, 64, ROOMY ? 2 : 1)                                        \
    PRODUCT_OF_MANY(name##_medium, bits, planes, true, 4, 1, 32, ROOMY ? 3 : 2)                                       \
    PRODUCT_OF_MANY(name##_scattered, bits, planes, true, 4, 1, 8, 5)                                                 \
    PRODUCT_OF_MANY(name##_general, bits, planes, false, 4, 1, 32, ROOMY ? 3 : 2)

#if ONLY_BITS != 4
PRODUCTS_OF_MANY(product_codes8_int8, 8, 1)
PRODUCTS_OF_MANY(product_codes8_int8x2, 8, 2)
#endif
#if ONLY_BITS != 8
PRODUCTS_OF_MANY(product_codes4_int8, 4, 1)
PRODUCTS_OF_MANY(product_codes4_int8x2, 4, 2)
#endif
