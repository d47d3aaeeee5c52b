// What a token's products are made of: one row, with tiles of codes whose scales are narrow, one for each block, without
// offsets.
//
// Up to 16 warps, a team, make a tile of 16 outputs together, each a chain of blocks, of which each lane of a row takes a
// stretch: block after block the exact integer product, times the weight's scale, times the row's scale, added to the
// stretch's sum. Then all stretches are added up in their order. Where a job has several tiles, up to as many teams, a
// group, make them at the same time.
//
// One multiplication of matrices has eight inputs of each of four blocks: a row of codes has one of them beside the
// other, and of the eight columns two have the inputs that belong to a block, others zeros there. So after four of
// them, each lane has the results of its own block, of either plane.
//
// What a warp does for a stage, one step after the other, takes as long as the stage takes to come from memory where
// eight warps have something to do: so it is as short as can be. Places in shared memory are numbers that only grow.
#pragma once

#include "few_rows.cuh"

// Which of a job's SLOTS tiles a warp has a part in, and in which part.
template <int SLOTS>
struct Place {
    int teams_each;                   // of a group: a power of two, up to SLOTS
    int groups;                       // of the block; warps beyond them have nothing to do
    int group, member, chain, first;  // where this warp is; its first tile of a job

    KESTREL_DEVICE explicit Place(const ProductFew& args) {
        int chains = args.weights.chains, teams = FEW_WARPS * args.by_chains >> 8;
        int shift = SLOTS == 1 ? 0 : args.teams_shift;
        int team = warp_index() * args.by_chains >> 8;
        teams_each = 1 << shift, groups = teams >> shift, group = team >> shift;
        chain = warp_index() - team * chains, member = warp_index() - (group << shift) * chains;
        first = (team - (group << shift)) * tiles();
    }

    // That a warp has of a job.
    KESTREL_DEVICE int tiles() const { return SLOTS / teams_each; }
    KESTREL_DEVICE int members(const Tiles& weights) const { return teams_each * weights.chains; }
};

// How a warp goes through its chain of each of its tiles.
template <int BITS, bool GATES, int SLOTS>
struct Asking {
    using Stage = Ring<BITS>;

    const ProductFew& args;
    const int* chosen;  // experts of this row
    const Place<SLOTS>& place;
    int step, end;
    int job, slot;                // the next tile to ask for
    int left;                     // stages of the one before
    const uint8 *codes, *scales;  // where this lane's pieces of it are

    // Of jobs from the first one on, up to before the end.
    KESTREL_DEVICE Asking(
        const ProductFew& arguments, const int* experts, const Place<SLOTS>& of_warp, int first_job, int step, int end
    )
        : args(arguments), chosen(experts), place(of_warp), step(step), end(end), job(first_job), slot(0), left(0) {}

    // number / jobs_each
    KESTREL_DEVICE int taken_of(int number) const {
        return args.by_jobs == 0 ? number : (int)((uint64)(uint32)number * args.by_jobs >> 32);
    }

    // Among those of all experts.
    KESTREL_DEVICE int tile_of(int number, int index) const {
        int tiles = args.weights.num_tiles(), taken = taken_of(number), in_expert = number - taken * args.jobs_each;
        int tile = GATES ? index / (SLOTS / 2) * (tiles / 2) + in_expert * (SLOTS / 2) + index % (SLOTS / 2)
                         : in_expert * SLOTS + index;
        return chosen == nullptr ? tile : chosen[taken] * tiles + tile;
    }

    // To the next tile, if there is one.
    KESTREL_DEVICE bool seek() {
        if (job >= end) return false;
        const Tiles& weights = args.weights;
        int64 stage = (int64)tile_of(job, place.first + slot) * weights.num_stages() + place.chain * weights.stretch;
        codes = weights.codes + stage * Stage::CODE_BYTES + lane_index() * 16;
        scales = weights.scales + stage * Stage::SCALE_BYTES + lane_index() * 16;
        left = weights.stretch;
        if (++slot == place.tiles()) slot = 0, job += step;
        return true;
    }

    // Up to so many of the chain's stages that are to be asked for next.
    KESTREL_DEVICE void bring_next_near(int stages) const {
        int count = min(stages, left);
        if (lane_index() != 0 || count <= 0) return;
        bring_near(codes, count * Stage::CODE_BYTES);
        bring_near(scales, count * Stage::SCALE_BYTES);
    }

    // The next stage, to where this lane's pieces of it have their places.
    KESTREL_DEVICE void ask(SharedPlace to) {
        if (left > 0 || seek()) {
#pragma unroll
            for (int i = 0; i < Stage::CODE_BYTES / UNIT_BYTES; ++i)
                copy_async16_to(to + i * UNIT_BYTES, codes + i * UNIT_BYTES);
            if (lane_index() < Stage::SCALE_BYTES / 16) copy_async16_to(to + Stage::CODE_BYTES, scales);
            codes += Stage::CODE_BYTES, scales += Stage::SCALE_BYTES;
            --left;
        }
        commit_copies();
    }
};

// The row's part that a lane multiplies with: of its chain, the stretch q; as a column, the plane r % 2 of that stretch
// whose number is r / 2.
template <int PLANES>
struct LaneInputs {
    SharedPlace codes, scales;
    bool has_codes;

    KESTREL_DEVICE LaneInputs(const SharedRows<PLANES>& rows, const Tiles& weights, int chain) {
        int r = lane_index() / 4, q = lane_index() % 4, block = (chain * STRETCHES + q) * weights.stretch;
        has_codes = r / 2 == q;
        codes = kept(shared_place(rows.plane(0, PLANES == 2 ? r % 2 : 0)) + block * WARP);
        scales = kept(shared_place(rows.scales) + block * 4);
    }

    KESTREL_DEVICE void move(int blocks) { codes += blocks * WARP, scales += blocks * 4; }
};

// A lane's sums of its stretch, for rows r and r + 8 of a tile.
template <int BITS, int PLANES>
struct StretchSums {
    float of[2];

    // A stage of which this lane's words and scales are there.
    KESTREL_DEVICE void add(SharedPlace words_at, SharedPlace scales_at, const LaneInputs<PLANES>& inputs) {
        const int pieces = BlockWords<BITS>::PIECES;
        BlockWords<BITS> words[2];
        for (int i = 0; i < 2; ++i)
            for (int j = 0; j < pieces; ++j)
                words[i].pieces[j] = load_shared16(words_at + (i * pieces + j) * UNIT_BYTES);
        uint4 early = make_uint4(0u, 0u, 0u, 0u), late = early;
        if (inputs.has_codes) {
            early = load_shared16(inputs.codes);
            late = load_shared16(inputs.codes + 16);
        }
        uint32 pair = load_shared4(scales_at);
        float scale = __uint_as_float(load_shared4(inputs.scales));
        // Two sums rather than one: each multiplication waits for the sum that it adds to.
        int32 c[2][4] = {};
        for (int i = 0; i < 4; ++i) {
            uint32 a[4] = {words[0].word(0, i), words[1].word(0, i), words[0].word(1, i), words[1].word(1, i)};
            const uint4& four = i < 2 ? early : late;
            uint32 b[2] = {i % 2 == 0 ? four.x : four.z, i % 2 == 0 ? four.y : four.w};
            mma_s8(c[i % 2], a, b);
        }
        for (int i = 0; i < 2; ++i) {
            int32 high = c[0][2 * i] + c[1][2 * i], low = c[0][2 * i + 1] + c[1][2 * i + 1];
            int32 dot = PLANES == 2 ? high * LOW_STEPS + low : high;
            of[i] = fmaf((float)dot * half_to_float((uint16)(pair >> 16 * i)), scale, of[i]);
        }
    }
};

// Of COUNT outputs, sums of stretches in shared memory, one behind the other. Where so many chains are left that those of
// AT_ONCE are asked for together: nothing has to be found out between them.
template <int COUNT, int STRIDE>
struct StretchTotals {
    float of[COUNT];
    SharedPlace from;  // the next stretch, of the first output
    int apart;         // outputs, in bytes
    int chains;        // left

    KESTREL_DEVICE StretchTotals(SharedPlace parts, int apart, int chains) : from(parts), apart(apart), chains(chains) {
        for (int j = 0; j < COUNT; ++j) of[j] = -0.0f;  // what is added to it stays as it is
    }

    template <int AT_ONCE>
    KESTREL_DEVICE void add() {
        const int stretches = AT_ONCE * STRETCHES;
#pragma unroll 1
        for (; chains >= AT_ONCE; chains -= AT_ONCE, from += stretches * STRIDE * 4) {
            float some[stretches][COUNT];
#pragma unroll
            for (int i = 0; i < stretches; ++i)
                for (int j = 0; j < COUNT; ++j)
                    some[i][j] = __uint_as_float(load_shared4(from + i * STRIDE * 4 + j * apart));
#pragma unroll
            for (int i = 0; i < stretches; ++i)
                for (int j = 0; j < COUNT; ++j) of[j] += some[i][j];
        }
    }
};

// All of COUNT outputs' stretches, from the first one's sum on, each STRIDE numbers behind the one before; outputs
// are so many bytes `apart`. Codes of 4 bits were 16-fold until here.
template <int BITS, int COUNT, int STRIDE>
KESTREL_DEVICE void totals(float (&sums)[COUNT], SharedPlace from, int apart, int chains) {
    StretchTotals<COUNT, STRIDE> totals(from, apart, chains);
    totals.template add<8 / COUNT>();
    if (COUNT == 1) totals.template add<4>();
    totals.template add<1>();
    for (int j = 0; j < COUNT; ++j) sums[j] = totals.of[j] * (1.0f / BlockWords<BITS>::ONE);
}
