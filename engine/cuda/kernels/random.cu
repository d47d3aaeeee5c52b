// Memory filled without the computer: weights of a benchmark, which have a model's shapes and no meaning. And a pass
// that only reads, which says how fast the card's memory is.
#include "card.cuh"

static const int FILL_THREADS = 256;
static const int READ_THREADS = 512;
static const int READS_AT_ONCE = 8;  // of 16 bytes, of one thread

// What a word of 4 bytes becomes.
enum FillForm {
    FILL_PATTERN = 0,   // the pattern itself
    FILL_NIBBLES = 1,   // codes of 4 bits, all 16 of them
    FILL_BYTES = 2,     // codes of 8 bits, in [-127, 127]
    FILL_FLOAT32 = 3,   // numbers, even in [-bound, bound)
    FILL_BFLOAT16 = 4,  // two of them
};

struct Fill {
    unsigned char* target;  // at a multiple of 4
    int64 count;            // bytes
    uint64 seed;            // the same seed makes the same bytes
    uint32 pattern;
    float bound;
    int32 form;
    int32 padding;
};

// Bits that depend on seed and counter alone: two rounds of the finalizer of MurmurHash3, whose every input bit
// changes each output bit half of the time.
KESTREL_DEVICE uint32 hashed(uint32 bits) {
    bits = (bits ^ (bits >> 16)) * 0x85ebca6bu;
    bits = (bits ^ (bits >> 13)) * 0xc2b2ae35u;
    return bits ^ (bits >> 16);
}

KESTREL_DEVICE uint32 random_word(uint64 seed, uint64 counter) {
    uint32 key = (uint32)seed ^ hashed((uint32)(seed >> 32) ^ (uint32)(counter >> 32) ^ 0x9e3779b9u);
    return hashed(hashed((uint32)counter ^ key) + key);
}

// In [-bound, bound), of the upper 16 bits.
KESTREL_DEVICE float even_number(uint32 bits, float bound) {
    return ((float)(int32)(bits >> 16) / 32768.0f - 1.0f) * bound;
}

KESTREL_DEVICE uint16 bfloat16_bits(float value) { return (uint16)(__float_as_uint(value) >> 16); }

KESTREL_DEVICE uint32 filled_word(const Fill& args, int64 index) {
    if (args.form == FILL_PATTERN) return args.pattern;
    uint32 bits = random_word(args.seed, (uint64)index);
    if (args.form == FILL_NIBBLES) return bits;
    if (args.form == FILL_BYTES) {
        for (int i = 0; i < 4; ++i)
            if (((bits >> 8 * i) & 0xff) == 0x80) bits ^= 1u << 8 * i;  // -128 becomes -127
        return bits;
    }
    float first = even_number(bits, args.bound);
    if (args.form == FILL_FLOAT32) return __float_as_uint(first);
    float second = even_number(bits << 16, args.bound);
    return bfloat16_bits(first) | (uint32)bfloat16_bits(second) << 16;
}

// As many blocks as one likes.
KESTREL_KERNEL(fill_memory, FILL_THREADS, Fill) {
    int64 step = (int64)gridDim.x * FILL_THREADS;
    for (int64 i = (int64)blockIdx.x * FILL_THREADS + threadIdx.x; 4 * i < args.count; i += step) {
        uint32 word = filled_word(args, i);
        if (4 * i + 4 <= args.count)
            ((uint32*)args.target)[i] = word;
        else
            for (int64 at = 4 * i; at < args.count; ++at) args.target[at] = (unsigned char)(word >> 8 * (at % 4));
    }
}

struct Reading {
    const unsigned char* source;  // at a multiple of 16
    uint32* found;                // takes a word, so that the reading is not for nothing
    int64 count;                  // of 16 bytes
};

// Reads all of it once. As many blocks as one likes.
KESTREL_KERNEL(read_memory, READ_THREADS, Reading) {
    int64 step = (int64)gridDim.x * READ_THREADS;
    uint32 all = 0;
    for (int64 i = (int64)blockIdx.x * READ_THREADS + threadIdx.x; i < args.count; i += READS_AT_ONCE * step) {
        uint4 read[READS_AT_ONCE];
#pragma unroll
        for (int j = 0; j < READS_AT_ONCE; ++j) {
            int64 at = i + j * step;
            read[j] = load_streaming(args.source + 16 * (at < args.count ? at : i));
        }
#pragma unroll
        for (int j = 0; j < READS_AT_ONCE; ++j) all |= read[j].x | read[j].y | read[j].z | read[j].w;
    }
    if (all == 0x5eed5eedu) *args.found = all;  // hardly ever: the compiler can't know that
}
