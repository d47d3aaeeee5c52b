// From strips as they are stored, row after row, to tiles.
#include "tiles.cuh"

static const int RELAY_THREADS = 256;

struct Relay {
    const uint8* codes;    // (E, N, K) of 8 bits, or (E, N, K / 2)
    const uint8* scales;   // (E, N, K / G)
    const uint8* offsets;  // as scales, or null
    Tiles to;              // whose memory is written
    int32 bits;
    int32 padding;
};

// One thread a piece of 16 bytes. blockIdx.y is the expert.
KESTREL_KERNEL(relay_codes, RELAY_THREADS, Relay) {
    const Tiles& to = args.to;
    int pieces = args.bits / 4, blocks = to.num_blocks(), stages = to.num_stages();
    int64 index = (int64)blockIdx.x * RELAY_THREADS + threadIdx.x;
    int64 count = (int64)to.num_tiles() * stages * 2 * pieces * WARP;
    if (index >= count) return;
    int q = (int)(index / LANE_ROWS % STRETCHES), r = (int)(index % LANE_ROWS) ^ 2 * q;  // see `piece_of`
    int unit = (int)(index / WARP % (2 * pieces)), stage = (int)(index / WARP / (2 * pieces) % stages);
    int tile = (int)(index / WARP / (2 * pieces) / stages);
    int row = tile * TILE + unit / pieces * LANE_ROWS + r, block = to.block_of(stage, q);
    bool there = row < to.rows && block < blocks;
    int64 at = (((int64)blockIdx.y * to.rows + row) * blocks + block) * pieces + unit % pieces;
    ((uint4*)to.codes)[blockIdx.y * count + index] =
        there ? ((const uint4*)args.codes)[at] : make_uint4(0u, 0u, 0u, 0u);
}

template <typename T>
KESTREL_DEVICE void relay_number(const Relay& args, const uint8* from, const uint8* to, int64 index) {
    const Tiles& tiles = args.to;
    int64 of_tile = tiles.tile_scales();
    int place = (int)(index % of_tile), r = place / 2 % LANE_ROWS;
    int row = (int)(index / of_tile) * TILE + place % 2 * LANE_ROWS + r, group = place / 2 / LANE_ROWS;
    if (tiles.blocks_a_scale == 1) group = tiles.block_of(group / STRETCHES, group % STRETCHES);
    int groups = tiles.num_blocks() / tiles.blocks_a_scale;
    bool there = row < tiles.rows && group < groups;
    int64 at = ((int64)blockIdx.y * tiles.rows + row) * groups + group;
    ((T*)to)[(int64)blockIdx.y * tiles.num_tiles() * of_tile + index] = there ? ((const T*)from)[at] : (T)0;
}

// One thread a scale. blockIdx.y is the expert.
KESTREL_KERNEL(relay_scales, RELAY_THREADS, Relay) {
    int64 index = (int64)blockIdx.x * RELAY_THREADS + threadIdx.x;
    if (index >= args.to.num_tiles() * args.to.tile_scales()) return;
    const uint8* from[2] = {args.scales, args.offsets};
    const uint8* to[2] = {args.to.scales, args.to.offsets};
    for (int i = 0; i < 2; ++i) {
        if (from[i] == nullptr) continue;
        if (args.to.narrow_scales)
            relay_number<uint16>(args, from[i], to[i], index);
        else
            relay_number<uint32>(args, from[i], to[i], index);
    }
}
