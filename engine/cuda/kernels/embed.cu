// The first hidden states of a step: rows of the embedding, as the numbers they stand for.
#include "card.cuh"

static const int EMBED_THREADS = 256;

enum EmbeddingKind { ROWS_FLOAT32, ROWS_FLOAT16, ROWS_BFLOAT16, ROWS_CODES8, ROWS_CODES4 };

struct Embedding {
    const int32* tokens;   // (T,)
    const uint8* weights;  // (V, H) numbers or codes, row after row as in a strip
    const uint8* scales;   // (V, H / G) float16 or float32; null for numbers
    const uint8* offsets;  // as scales; null where there are none
    float* hidden;         // (T, H)
    int32 width;           // H
    int32 group;           // G
    int32 narrow_scales;   // whether they are float16
    int32 padding;
};

KESTREL_DEVICE float embedding_scale(const Embedding& args, const uint8* scales, int64 index) {
    return args.narrow_scales ? half_to_float(((const uint16*)scales)[index]) : ((const float*)scales)[index];
}

// A code of 4 bits: byte i of a block of 32 holds codes i (low) and i + 16 (high).
KESTREL_DEVICE int nibble_code(const uint8* row, int column) {
    int byte = row[column / 32 * 16 + column % 16];
    return (int)(int8)(column % 32 < 16 ? byte << 4 : byte & 0xf0) / 16;
}

// How rows lie in memory is known here and nowhere else.
template <int KIND>
KESTREL_DEVICE float embedding_at(const Embedding& args, int64 row, int column) {
    int64 index = row * args.width + column;
    if (KIND == ROWS_FLOAT32) return ((const float*)args.weights)[index];
    if (KIND == ROWS_FLOAT16) return half_to_float(((const uint16*)args.weights)[index]);
    if (KIND == ROWS_BFLOAT16) return bfloat16_to_float(((const uint16*)args.weights)[index]);
    int code = KIND == ROWS_CODES8 ? ((const int8*)args.weights)[index]
                                   : nibble_code(args.weights + row * args.width / 2, column);
    int64 group = index / args.group;
    float value = (float)code * embedding_scale(args, args.scales, group);
    return args.offsets != nullptr ? value + embedding_scale(args, args.offsets, group) : value;
}

// blockIdx.y is the token.
template <int KIND>
KESTREL_DEVICE void embed(const Embedding& args) {
    wait_for_previous();
    let_next_start();
    int column = blockIdx.x * EMBED_THREADS + threadIdx.x;
    if (column >= args.width) return;
    int64 token = blockIdx.y;
    args.hidden[token * args.width + column] = embedding_at<KIND>(args, args.tokens[token], column);
}

KESTREL_KERNEL(embed_float32, EMBED_THREADS, Embedding) { embed<ROWS_FLOAT32>(args); }
KESTREL_KERNEL(embed_float16, EMBED_THREADS, Embedding) { embed<ROWS_FLOAT16>(args); }
KESTREL_KERNEL(embed_bfloat16, EMBED_THREADS, Embedding) { embed<ROWS_BFLOAT16>(args); }
KESTREL_KERNEL(embed_codes8, EMBED_THREADS, Embedding) { embed<ROWS_CODES8>(args); }
KESTREL_KERNEL(embed_codes4, EMBED_THREADS, Embedding) { embed<ROWS_CODES4>(args); }
