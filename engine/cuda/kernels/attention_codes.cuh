// Attention over 8-bit pages on tensor cores: what one token and many rows have in common, so that they come to the same
// bits.
//
// Queries, and weights of values, become whole numbers of 16 bits, 32639 being the largest of a row (queries: of a head;
// weights: of a row and split), which two signed bytes hold: 256 * high + low. Products with codes of keys and values
// are exact then, and so is their sum, in whatever order. What is left of floating point happens once for each score,
// and once for each sum over a split, in an order that depends on positions alone: a split is 256 tokens, of which each
// of eight warps has 32, and splits are put together one after the other.
//
// Lane 4 r + q of a warp has, of the row r of a tile, the scores of tokens 8 j + 2 q + e at 2 j + e (j < 4, e < 2). As
// weights these are the lane's part of a tile of 32 tokens, if rows of values come in the same order; and of keys and
// queries a lane reads 16 features in a row, which is another order than a tile's, but the same one in both.
#pragma once

#include "heads.cuh"
#include "step.cuh"

static const int ATTEND_THREADS = 256;
static const int SPLIT_WARPS = ATTEND_THREADS / WARP;
static const int WARP_TOKENS = SPLIT / SPLIT_WARPS;
static const int CHUNK = 128;        // features that a warp goes through at once
static const int CHUNK_TILES = CHUNK / WARP;
static const int LANE_TOKENS = 8;    // of a row, see above
static const float LARGEST_PAIR = 32639.0f;  // 256 * 127 + 127
static const float LOG2_E = 1.44269504f;

struct CodeAttention {
    const Step* step;
    const float* qkv;      // (T, A + 2 G, D); of many rows queries are rotated, and keys and values are in pages
    const float* norm;     // (A + G, D) or null; for one token, as what follows
    const float* cosines;  // (positions, R / 2): by position
    const float* sines;    // (positions, R / 2)
    float* partials;       // (A, splits, D) sums, and (A, splits, 2) the largest scores and sums of weights
    uint32* arrivals;      // (G): 0 between launches
    Activation out;        // (T, A * D)
    PageLayout layout;
    int32 query_heads;     // A
    int32 window;          // tokens that a query sees, itself among them; 0: all
    int32 rows;            // T
    int32 rotated;         // R, of each head's D
    int32 lets_early;      // for one token, whether the next launch may begin before the row is there
    int32 joining;         // blocks of a head of keys and values that may put its splits together, at most; 1 or more
    float scale;
    float eps;
};

KESTREL_DEVICE float minus_infinity() { return __uint_as_float(0xff800000u); }

// Positions are below 2^31.
KESTREL_DEVICE int32 oldest_seen(int32 position, int window) {
    return window > 0 && position >= window ? position - window + 1 : 0;
}

KESTREL_DEVICE uint32 word_of(const uint4& words, int index) {
    return index == 0 ? words.x : index == 1 ? words.y : index == 2 ? words.z : words.w;
}

// --- keys and values of a warp's tokens -------------------------------------------------------------------------------

// 32 tokens that follow one another, in one page. Where there are none to be read, no address is made.
struct WarpTokens {
    const uint8* layer;  // of the page
    int32 first;         // in the page
    int32 count;         // of those that may be read; others are taken for zeros
    int32 kv_head, kv_heads;
    int32 width;         // D, a multiple of 32

    // Tokens from `position` on, up to before `end`.
    KESTREL_DEVICE WarpTokens(const CodeAttention& args, int kv_head, int32 position, int32 end)
        : layer(nullptr), first(position % PAGE), kv_head(kv_head) {
        kv_heads = args.layout.heads;
        width = args.layout.width;
        count = max(0, min(WARP_TOKENS, end - position));
        if (count > 0) layer = args.step->page(position / PAGE) + args.layout.offset;
    }

    // The same of which it is known where their page is, if they are in one.
    KESTREL_DEVICE WarpTokens(const CodeAttention& args, int kv_head, int32 position, int32 end, const uint8* page)
        : layer(nullptr), first(position % PAGE), kv_head(kv_head) {
        kv_heads = args.layout.heads;
        width = args.layout.width;
        count = max(0, min(WARP_TOKENS, end - position));
        if (count > 0) layer = page + args.layout.offset;
    }

    KESTREL_DEVICE const uint8* key(int token) const { return layer + (kv_head * PAGE + first + token) * width; }
    KESTREL_DEVICE const uint8* value(int token) const {
        return layer + ((kv_heads + kv_head) * PAGE + first + token) * width;
    }

    // Of this token and those behind it.
    template <bool KEYS>
    KESTREL_DEVICE const float* scales(int token) const {
        int row = ((KEYS ? 0 : kv_heads) + kv_head) * PAGE + first + token;
        return (const float*)(layer + 2 * kv_heads * PAGE * width) + row;
    }
};

template <bool ONCE>
KESTREL_DEVICE uint4 read_piece(const uint8* piece) {
    return ONCE ? load_streaming(piece) : load_global16(piece);
}

struct KeyChunk {
    uint4 pieces[2][4];  // of token 8 j + r, features 64 i + 16 q and after, at [i][j]

    template <bool ONCE>
    KESTREL_DEVICE void load(const WarpTokens& tokens, int chunk) {
        int token = lane_index() / 4, feature = CHUNK * chunk + lane_index() % 4 * 16;
        const uint8* row = tokens.key(token) + feature;
        for (int i = 0; i < 2; ++i)
            for (int j = 0; j < 4; ++j) {
                bool there = token + 8 * j < tokens.count && feature + 64 * i < tokens.width;
                pieces[i][j] = make_uint4(0, 0, 0, 0);
                if (there) pieces[i][j] = read_piece<ONCE>(row + 8 * j * tokens.width + 64 * i);
            }
    }

    // Another row (D) for one of the warp's tokens. It is loaded into whichever place is the token's: moved there from
    // where it is loaded once, it takes twice as many instructions.
    KESTREL_DEVICE void replace(int token, SharedPlace row, int width, int chunk) {
        for (int i = 0; i < 2; ++i) {
            int feature = CHUNK * chunk + 64 * i + lane_index() % 4 * 16;
            for (int j = 0; j < 4; ++j)
                if (token == 8 * j + lane_index() / 4 && feature < width) pieces[i][j] = load_shared16(row + feature);
        }
    }

    // B of a tile of 32 features (of four) and 8 tokens (of four).
    KESTREL_DEVICE void tile(int features, int tokens, uint32* b) const {
        const uint4& piece = pieces[features / 2][tokens];
        b[0] = features % 2 ? piece.z : piece.x;
        b[1] = features % 2 ? piece.w : piece.y;
    }
};

struct ValueChunk {
    uint4 pieces[LANE_TOKENS];  // of the lane's tokens, features 16 r and after

    static KESTREL_DEVICE int token_at(int index) { return index / 2 * 8 + lane_index() % 4 * 2 + index % 2; }

    template <bool ONCE>
    KESTREL_DEVICE void load(const WarpTokens& tokens, int chunk) {
        int feature = CHUNK * chunk + lane_index() / 4 * 16;
        const uint8* row = tokens.value(token_at(0)) + feature;
        for (int index = 0; index < LANE_TOKENS; ++index) {
            bool there = token_at(index) < tokens.count && feature < tokens.width;
            pieces[index] = make_uint4(0, 0, 0, 0);
            if (there) pieces[index] = read_piece<ONCE>(row + (token_at(index) - token_at(0)) * tokens.width);
        }
    }

    KESTREL_DEVICE void replace(int token, SharedPlace row, int width, int chunk) {
        int feature = CHUNK * chunk + lane_index() / 4 * 16;
        for (int index = 0; index < LANE_TOKENS; ++index)
            if (token == token_at(index) && feature < width) pieces[index] = load_shared16(row + feature);
    }

    // Bytes of four tokens and features the other way round: word f has feature f of all.
    static KESTREL_DEVICE void transpose(uint32 a, uint32 b, uint32 c, uint32 d, uint32* words) {
        uint32 ab_low = __byte_perm(a, b, 0x5140), ab_high = __byte_perm(a, b, 0x7362);
        uint32 cd_low = __byte_perm(c, d, 0x5140), cd_high = __byte_perm(c, d, 0x7362);
        words[0] = __byte_perm(ab_low, cd_low, 0x5410);
        words[1] = __byte_perm(ab_low, cd_low, 0x7632);
        words[2] = __byte_perm(ab_high, cd_high, 0x5410);
        words[3] = __byte_perm(ab_high, cd_high, 0x7632);
    }

    // B of the tiles 4 `four` and after: word [half][t] is b[half] of tile 4 four + t. Column c of tile f is the
    // chunk's feature 16 c + f.
    KESTREL_DEVICE void tiles(int four, uint32 (&words)[2][4]) const {
        for (int half = 0; half < 2; ++half)
            transpose(
                word_of(pieces[4 * half], four), word_of(pieces[4 * half + 1], four), word_of(pieces[4 * half + 2], four),
                word_of(pieces[4 * half + 3], four), words[half]
            );
    }
};

// Scales of the lane's tokens.
struct LaneScales {
    float of[LANE_TOKENS];

    template <bool KEYS>
    KESTREL_DEVICE void load(const WarpTokens& tokens) {
        const float* scales = tokens.scales<KEYS>(ValueChunk::token_at(0));
        for (int index = 0; index < LANE_TOKENS; index += 2) {
            int token = ValueChunk::token_at(index);
            float2 pair = make_float2(0.0f, 0.0f);
            if (token < tokens.count) pair = load_global8(scales + 4 * index);  // eight tokens further each time
            of[index] = pair.x;
            of[index + 1] = token + 1 < tokens.count ? pair.y : 0.0f;
        }
    }

    // scales: of the warp's tokens.
    KESTREL_DEVICE void take(const float* scales) {
        for (int index = 0; index < LANE_TOKENS; index += 2) {
            float2 pair = *(const float2*)(scales + ValueChunk::token_at(index));
            of[index] = pair.x;
            of[index + 1] = pair.y;
        }
    }
};

// --- queries ----------------------------------------------------------------------------------------------------------

// Parts of A, as lanes read them: [tile of 32 features][lane].
KESTREL_DEVICE int num_feature_tiles(int width) { return (width + 63) / 64 * 2; }

// A head's query (D) as pairs of bytes; returns what a pair counts. Tile row `row` (below 8) has the pair's bytes at
// `high` and `low`, each in the half of the tile's rows that `upper_high` and `upper_low` say.
template <int PIECES, int LANES>
KESTREL_DEVICE float store_query(
    const HeadRow<PIECES, LANES>& x, int width, int row, uint4* high, bool upper_high, uint4* low, bool upper_low
) {
    float largest = x.magnitude(), scale = largest * (1.0f / LARGEST_PAIR);
    if (scale < SMALLEST_NORMAL) scale = 0.0f;
    float factor = scale > 0.0f ? LARGEST_PAIR / largest : 0.0f;
#pragma unroll
    for (int piece = 0; piece < PIECES; ++piece) {
        int feature = head_feature<LANES>(piece);
        if (feature >= width) continue;
        uint32 pairs[4], rounded[4];
        for (int i = 0; i < 4; ++i) {
            pairs[i] = __float_as_uint(fmaf(x.of[piece][i], factor, ROUNDS_TO_WHOLE));
            rounded[i] = (pairs[i] + 128) >> 8;
        }
        int tile = feature / 64 * 2 + feature % 16 / 8, lane = 4 * row + feature % 64 / 16, word = feature % 8 / 4 * 2;
        int at = 4 * (tile * WARP + lane) + word;
        ((uint32*)high)[at + upper_high] = low_bytes(rounded);
        ((uint32*)low)[at + upper_low] = low_bytes(pairs);
    }
    return scale;
}

KESTREL_DEVICE void multiply(int32 (&c)[4], const uint4& a, const uint32* b) {
    uint32 words[4] = {a.x, a.y, a.z, a.w};
    mma_s8(c, words, b);
}

KESTREL_DEVICE int32 pair_sum(int32 high, int32 low) { return high * 256 + low; }

// --- from scores to weights -------------------------------------------------------------------------------------------

KESTREL_DEVICE float quad_max(float value) {
    value = fmaxf(value, __shfl_xor_sync(ALL_LANES, value, 1));
    return fmaxf(value, __shfl_xor_sync(ALL_LANES, value, 2));
}

KESTREL_DEVICE uint32 quad_max(uint32 value) {
    value = max(value, __shfl_xor_sync(ALL_LANES, value, 1));
    return max(value, __shfl_xor_sync(ALL_LANES, value, 2));
}

KESTREL_DEVICE float quad_sum(float value) {
    value += __shfl_xor_sync(ALL_LANES, value, 1);
    return value + __shfl_xor_sync(ALL_LANES, value, 2);
}

// What the warps have found of each row of a split. Of weights, whose signs are plus, the largest one is also that of
// their bits; and what is no number has larger ones.
template <int ROWS>
struct RowParts {
    static_assert(SPLIT_WARPS == 8, "two fours");
    float4 largest[ROWS][2];
    float4 total[ROWS][2];
    uint4 heaviest[ROWS][2];

    // Of one warp.
    KESTREL_DEVICE void put_largest(int row, int warp, float value) { ((float*)largest[row])[warp] = value; }
    KESTREL_DEVICE void put_weights(int row, int warp, float sum, uint32 most) {
        ((float*)total[row])[warp] = sum;
        ((uint32*)heaviest[row])[warp] = most;
    }

    KESTREL_DEVICE float largest_of(int row) const {
        float4 a = largest[row][0], b = largest[row][1];
        return fmaxf(fmaxf(fmaxf(a.x, a.y), fmaxf(a.z, a.w)), fmaxf(fmaxf(b.x, b.y), fmaxf(b.z, b.w)));
    }
    KESTREL_DEVICE float total_of(int row) const {
        float4 a = total[row][0], b = total[row][1];
        return ((a.x + a.y) + (a.z + a.w)) + ((b.x + b.y) + (b.z + b.w));
    }
    KESTREL_DEVICE float heaviest_of(int row) const {
        uint4 a = heaviest[row][0], b = heaviest[row][1];
        return __uint_as_float(max(max(max(a.x, a.y), max(a.z, a.w)), max(max(b.x, b.y), max(b.z, b.w))));
    }
};

// A lane's scores of one row, and what becomes of them.
struct LaneRow {
    float of[LANE_TOKENS];

    // Tokens at `first` and after, of which `oldest` to `newest` are seen.
    KESTREL_DEVICE void hide(int32 first, int32 oldest, int32 newest) {
        for (int index = 0; index < LANE_TOKENS; ++index) {
            int token = first + ValueChunk::token_at(index);
            if (token < oldest || token > newest) of[index] = minus_infinity();
        }
    }

    KESTREL_DEVICE float largest() const {
        float found = of[0];
        for (int index = 1; index < LANE_TOKENS; ++index) found = fmaxf(found, of[index]);
        return quad_max(found);
    }

    // Scores become weights beside the split's largest score: their sum is returned, of all the warp's tokens. Then
    // they become weights of values, of which `heaviest` is the largest one's bits.
    KESTREL_DEVICE float weigh(float largest, const LaneScales& value_scales, uint32& heaviest) {
        float sum = 0.0f;
        uint32 most = 0;
        float base = largest == minus_infinity() ? 0.0f : largest;
        for (int index = 0; index < LANE_TOKENS; ++index) {
            float weight = power_of_two(of[index] - base);
            sum += weight;
            of[index] = weight == 0.0f ? 0.0f : weight * value_scales.of[index];
            most = max(most, __float_as_uint(of[index]));
        }
        heaviest = quad_max(most);
        return quad_sum(sum);
    }

    // Words of bytes: [half] of the tile's 32 tokens.
    KESTREL_DEVICE void pairs(float heaviest, uint32 (&high)[2], uint32 (&low)[2]) const {
        float factor = heaviest * (1.0f / LARGEST_PAIR) < SMALLEST_NORMAL ? 0.0f : LARGEST_PAIR / heaviest;
        for (int half = 0; half < 2; ++half) {
            uint32 bits[4];
            for (int i = 0; i < 4; ++i) bits[i] = __float_as_uint(fmaf(of[4 * half + i], factor, ROUNDS_TO_WHOLE));
            uint32 first = __byte_perm(bits[0], bits[1], 0x5410), second = __byte_perm(bits[2], bits[3], 0x5410);
            low[half] = __byte_perm(first, second, 0x6420);
            high[half] = __byte_perm(first + 0x00800080u, second + 0x00800080u, 0x7531);
        }
    }
};

// What a pair of a row's weights counts; NaN where one of them is no number.
KESTREL_DEVICE float pair_scale(float heaviest) {
    float scale = heaviest * (1.0f / LARGEST_PAIR);
    return scale < SMALLEST_NORMAL ? 0.0f : scale;
}

// --- splits become one ------------------------------------------------------------------------------------------------

// By what sums so far, and those of the next split, are multiplied: its largest score may be larger than all before.
struct Joint {
    float before, added;

    KESTREL_DEVICE float join(float sum, float more) const { return fmaf(more, added, sum * before); }
};

// largest: of both.
KESTREL_DEVICE Joint joint_of(float largest_before, float largest_added, float largest) {
    return {power_of_two(largest_before - largest), power_of_two(largest_added - largest)};
}
