// What kernels see of the machine that runs them: blocks on threads of the processor, threads of a block on fibers.
// How it works is in fibers.h and launcher.cpp. Nothing large is included here, so that kernels compile fast.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace kestrel_machine {

struct Triple {
    unsigned x, y, z;
};

enum Operation {
    NONE, SYNCTHREADS, SYNCWARP, SHUFFLE, SHUFFLE_XOR, SHUFFLE_UP, SHUFFLE_DOWN, BALLOT, ANY, ALL, MMA_S8, WAIT_UNTIL_ALL
};

struct Place {  // in the kernel's text
    const char* file;
    int line;
};

struct Seat {  // of a thread in its block
    Triple thread;  // threadIdx
    unsigned warp, lane;
};

struct View {
    Seat* current;
    Triple block;       // blockIdx
    Triple dimensions;  // blockDim
    Triple grid;        // gridDim
    unsigned char* dynamic;  // shared memory
};

static const size_t REGION = size_t(128) << 20;  // a worker's memory, stacks included; its start is a multiple of this

// Whose stack this is. Only for what runs on a fiber.
inline View* view() { return (View*)((uintptr_t)__builtin_frame_address(0) & ~(uintptr_t)(REGION - 1)); }

void wait_for_block(Place place);

// What the operation gives to this lane, once all of `mask` have come. source: the lane whose value it wants.
uint64_t wait_for_lanes(Operation operation, uint32_t mask, uint64_t value, uint32_t source, Place place);

// What a warp does as one, on what each of its lanes points at.
typedef void (*Together)(void* const lanes[32]);

// Once all 32 lanes have come, `what` is done.
void do_together(Operation operation, Together what, void* mine, Place place);

// Another warp goes on, if one can. For whoever looks again and again for what others do.
void let_others_run();

// The block is about to wait for others, whether or not they are there already: not every block may, see aside.h.
void may_wait_for_others(Place place);

// Until a counter that other blocks of the launch change is 0. Meanwhile these go on, and others begin.
void wait_for_zero(const unsigned* counter, Place place);

// 16 bytes that arrive as late as they may: when `finish_copies` leaves fewer groups on their way.
void start_copy(void* target, const void* source);
void commit_copies();
void finish_copies(unsigned groups_left);

struct Kernel {
    const char* name;
    unsigned threads;  // the most in a block
    void (*body)(const void* arguments);
};

// 0, or 1 with the reason in `kestrel_error`.
int launch(const Kernel& kernel, const void* arguments, Triple grid, unsigned block, unsigned shared_bytes);

}  // namespace kestrel_machine
