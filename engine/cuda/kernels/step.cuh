// What the tokens of one step are: the head of what the host sends for each.
#pragma once

#include "card.cuh"

static const int PAGE = 64;    // tokens
static const int SPLIT = 256;  // tokens, at multiples of that, that attention goes through at once

struct Step {
    int64 first;  // position of the first token; behind it are the addresses of all pages

    KESTREL_DEVICE const uint8* const* pages() const { return (const uint8* const*)(this + 1); }
    KESTREL_DEVICE const uint8* page(int64 number) const { return pages()[number]; }
};

// Where a layer's part of a page lies: keys (G, 64, D), values (G, 64, D), and for codes the scales of keys (G, 64) and
// of values (G, 64).
struct PageLayout {
    int64 offset;  // of the layer within a page, in bytes
    int32 heads;   // G
    int32 width;   // D
};

template <bool CODES>
struct PageRows {
    const uint8* layer;
    int heads, width;

    KESTREL_DEVICE PageRows(const Step* step, const PageLayout& layout, int64 position) {
        layer = step->page(position / PAGE) + layout.offset;
        heads = layout.heads;
        width = layout.width;
    }

    static const int BYTES = CODES ? 1 : 4;

    // `head` counts those of the keys, then those of the values.
    KESTREL_DEVICE const uint8* row(int head, int64 position) const {
        return layer + ((int64)head * PAGE + position % PAGE) * width * BYTES;
    }

    KESTREL_DEVICE float* scale(int head, int64 position) const {
        const uint8* scales = layer + (int64)2 * heads * PAGE * width;
        return (float*)scales + head * PAGE + position % PAGE;
    }
};
