// Blocks of a kernel on threads of the processor, threads of a block on fibers of one of those.
//
// A fiber runs until it has to wait: at __syncthreads, or for the other lanes of its warp. Then another one of its block
// goes on, without the system's help. So between two barriers the threads of a block run one after the other, and
// whoever reads what another writes without a barrier between the two reads poison, or depends on the order, which a
// seed changes.
//
// A block whose threads all wait, some of them for other blocks, is left as it is, and goes on later: see aside.h.
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <atomic>
#include <mutex>
#include <string>
#include <vector>

#include "machine.h"

namespace kestrel_machine {

static const unsigned LANES = 32, MOST_THREADS = 1024, MOST_WARPS = MOST_THREADS / LANES;
static const size_t MEMORY_PAGE = 4096;
static const size_t STACK_STRIDE = 17 * MEMORY_PAGE;  // 64 KiB, and a page that nobody may touch
static const size_t FIBERS_BYTES = 64 * MEMORY_PAGE;  // a worker's own data, before the stacks
static const size_t MOST_SHARED = 227 * 1024;         // of a block, on any card
static const size_t SHARED_GUARD = 1024;              // on both sides
static const size_t SHARED_REGION = 64 * MEMORY_PAGE; // where it lies, between two more that nobody may touch
static const unsigned char POISON = 0xff;             // not a number, as float, half and bfloat16
static const unsigned char GUARD[2] = {0xfb, 0xff};   // the same, and another one

static const char* const NAMES[] = {
    "", "__syncthreads", "__syncwarp", "__shfl_sync", "__shfl_xor_sync", "__shfl_up_sync", "__shfl_down_sync",
    "__ballot_sync", "__any_sync", "__all_sync", "mma_s8", "wait_until_all"};

struct Copy {  // 16 bytes that are on their way
    void* target;
    const void* source;
};

struct Copies {  // of one thread
    std::vector<Copy> pending;    // the oldest first
    std::vector<size_t> groups;   // where each ends
};

struct Fiber : Seat {
    void* stack_pointer;
    int stack;  // its number; -1: the thread hasn't begun
    Operation waits;
    Place place;
    uint32_t mask;     // lanes that it waits for, itself among them
    uint32_t source;   // the lane whose value it wants
    uint64_t value;    // that it brings, or where it is
    uint64_t result;
    Together together;
    const unsigned* counter;  // until this is 0
};

struct Worker;
struct Crew;

struct Launch {
    const Kernel* kernel;
    const void* arguments;
    Triple grid;
    unsigned block, shared_bytes;
    uint64_t num_blocks, seed;
    std::vector<uint32_t> order;  // of the blocks; empty: as they are numbered
    std::atomic<uint64_t> next{0}, ended{0}, waiters{0};  // blocks: begun, ended, that ever wait for others
    std::atomic<bool> failed{false};
    std::mutex mutex;
    std::string error;           // the first
    std::mutex aside_mutex;
    std::vector<Worker*> aside;  // whose blocks wait for others
};

struct Worker : View {
    Crew* crew;
    Launch* launch;   // null: it has no block
    void* scheduler;  // stack pointer of what runs the fibers
    unsigned threads, warps, living, at_barrier;
    uint32_t ready[MOST_WARPS], alive[MOST_WARPS], waiting[MOST_WARPS];
    uint64_t random;
    bool is_waiter;  // its block is counted among the launch's
    unsigned num_stacks, num_free;
    int free_stacks[MOST_THREADS];
    Copies* copies;  // of each thread
    unsigned char* shared_end;  // of the region of its shared memory
    std::vector<char> shared_aside;  // `__shared__` variables of a block that was put aside
    Fiber fibers[MOST_THREADS];
};
static_assert(MOST_SHARED + 16 + 2 * SHARED_GUARD <= SHARED_REGION, "the most that a block may have has room");
static_assert(sizeof(Worker) <= FIBERS_BYTES, "a worker's data end where its stacks begin");
static_assert(FIBERS_BYTES + MOST_THREADS * STACK_STRIDE <= REGION, "they all have room");

inline Worker* worker() { return static_cast<Worker*>(view()); }
inline Fiber* current(const Worker* worker) { return static_cast<Fiber*>(worker->current); }

inline char* stack_bottom(Worker* worker, int stack) {
    return (char*)worker + FIBERS_BYTES + stack * STACK_STRIDE;
}

// Saves what a called function has to keep, and goes on where another one did so.
extern "C" __attribute__((visibility("hidden"))) void kestrel_switch(void** save, void* load);

#if defined(__x86_64__)
asm(".text\n.globl kestrel_switch\n.hidden kestrel_switch\n.type kestrel_switch,@function\nkestrel_switch:\n"
    "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
    "movq %rsp, (%rdi)\nmovq %rsi, %rsp\n"
    "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nret\n"
    ".size kestrel_switch,.-kestrel_switch\n");

inline void* first_frame(char* top, void (*entry)()) {
    void** slots = (void**)top;
    slots[-1] = nullptr;  // where `entry` would return to
    slots[-2] = (void*)entry;
    for (int i = 3; i <= 8; ++i) slots[-i] = nullptr;
    return slots - 8;
}
inline uintptr_t stack_pointer_of(const ucontext_t* context) { return context->uc_mcontext.gregs[REG_RSP]; }
inline uintptr_t code_address_of(const ucontext_t* context) { return context->uc_mcontext.gregs[REG_RIP]; }

#elif defined(__aarch64__)
asm(".text\n.globl kestrel_switch\n.hidden kestrel_switch\n.type kestrel_switch,%function\nkestrel_switch:\n"
    "sub sp, sp, #160\n"
    "stp x19, x20, [sp]\nstp x21, x22, [sp, #16]\nstp x23, x24, [sp, #32]\nstp x25, x26, [sp, #48]\n"
    "stp x27, x28, [sp, #64]\nstp x29, x30, [sp, #80]\n"
    "stp d8, d9, [sp, #96]\nstp d10, d11, [sp, #112]\nstp d12, d13, [sp, #128]\nstp d14, d15, [sp, #144]\n"
    "mov x9, sp\nstr x9, [x0]\nmov sp, x1\n"
    "ldp x19, x20, [sp]\nldp x21, x22, [sp, #16]\nldp x23, x24, [sp, #32]\nldp x25, x26, [sp, #48]\n"
    "ldp x27, x28, [sp, #64]\nldp x29, x30, [sp, #80]\n"
    "ldp d8, d9, [sp, #96]\nldp d10, d11, [sp, #112]\nldp d12, d13, [sp, #128]\nldp d14, d15, [sp, #144]\n"
    "add sp, sp, #160\nret\n"
    ".size kestrel_switch,.-kestrel_switch\n");

inline void* first_frame(char* top, void (*entry)()) {
    void** slots = (void**)(top - 160);
    for (int i = 0; i < 20; ++i) slots[i] = nullptr;
    slots[11] = (void*)entry;  // x30, where `ret` goes
    return slots;
}
inline uintptr_t stack_pointer_of(const ucontext_t* context) { return context->uc_mcontext.sp; }
inline uintptr_t code_address_of(const ucontext_t* context) { return context->uc_mcontext.pc; }

#else
#error "no context switch for this processor"
#endif

// --- errors -----------------------------------------------------------------------------------------------------------

inline std::string text(const char* format, ...) {
    char buffer[600];
    va_list values;
    va_start(values, format);
    vsnprintf(buffer, sizeof buffer, format, values);
    va_end(values);
    return buffer;
}

inline std::string text(const Place& place) {
    const char* slash = strrchr(place.file, '/');
    return text("%s:%d", slash ? slash + 1 : place.file, place.line);
}

inline void record(Launch* launch, const std::string& message) {
    std::lock_guard<std::mutex> lock(launch->mutex);
    if (!launch->failed.exchange(true)) launch->error = message;
}

inline std::string where(const Worker* worker) {
    const Triple& b = worker->block;
    return text("kernel %s, block (%u, %u, %u)", worker->launch->kernel->name, b.x, b.y, b.z);
}

// Ends the block, from one of its fibers.
[[noreturn]] inline void fail(const std::string& message) {
    Worker* w = worker();
    record(w->launch, where(w) + text(", thread %u: ", w->current->thread.x) + message);
    void* nowhere;
    kestrel_switch(&nowhere, w->scheduler);
    __builtin_unreachable();
}

// --- fibers -----------------------------------------------------------------------------------------------------------

inline bool same(const Place& a, const Place& b) {
    return a.line == b.line && (a.file == b.file || strcmp(a.file, b.file) == 0);
}

inline uint64_t random_number(uint64_t& state) {  // SplitMix64
    uint64_t z = (state += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

inline unsigned lowest(uint32_t bits) { return (unsigned)__builtin_ctz(bits); }

// The next one that can go on: in turn, beginning with the warp where the last one was. Null: all wait.
inline Fiber* next_ready(Worker* w, unsigned warp, unsigned lane) {
    if (w->launch->seed) {
        uint64_t number = random_number(w->random);
        warp = (unsigned)(number >> 32) % w->warps;
        lane = (unsigned)number % LANES;
    }
    for (unsigned i = 0; i < w->warps; ++i) {
        uint32_t bits = w->ready[warp];
        if (bits) {
            uint32_t later = bits & (0xffffffffu << lane);
            return &w->fibers[warp * LANES + lowest(later ? later : bits)];
        }
        if (++warp == w->warps) warp = 0;
        if (!w->launch->seed) lane = 0;
    }
    return nullptr;
}

inline void fiber_main();

// The bottom of a stack that nobody uses.
inline int take_stack(Worker* w) {
    if (w->num_free) return w->free_stacks[--w->num_free];
    mprotect(stack_bottom(w, (int)w->num_stacks), MEMORY_PAGE, PROT_NONE);
    return (int)w->num_stacks++;
}

// Where it goes on; for one that hasn't begun, its beginning on a stack of its own.
inline void* entry_of(Worker* w, Fiber* fiber) {
    if (fiber->stack < 0) {
        fiber->stack = take_stack(w);
        // Not all at the same distance from a power of two: they would push each other out of the cache.
        char* top = stack_bottom(w, fiber->stack) + STACK_STRIDE - fiber->stack % 32 * 128;
        fiber->stack_pointer = first_frame(top, fiber_main);
    }
    return fiber->stack_pointer;
}

// Leaves the current fiber until something makes it ready.
inline void wait(Worker* w) {
    Fiber* from = current(w);
    Fiber* to = next_ready(w, from->warp, from->lane);
    if (to == from) return;
    w->current = to;
    kestrel_switch(&from->stack_pointer, to ? entry_of(w, to) : w->scheduler);
}

void let_others_run() {
    Worker* w = worker();
    Fiber* from = current(w);
    Fiber* to = next_ready(w, (from->warp + 1) % w->warps, 0);
    if (to == from) return;
    w->current = to;
    kestrel_switch(&from->stack_pointer, entry_of(w, to));
}

void wait_for_zero(const unsigned* counter, Place place) {
    Worker* w = worker();
    Fiber* fiber = current(w);
    fiber->waits = WAIT_UNTIL_ALL;
    fiber->counter = counter;
    fiber->place = place;
    w->ready[fiber->warp] &= ~(1u << fiber->lane);
    wait(w);
}

// All living threads of the block have come to the barrier: lets them go on.
inline void release_block(Worker* w) {
    const Fiber* first = nullptr;
    for (unsigned i = 0; i < w->threads; ++i) {
        Fiber& fiber = w->fibers[i];
        if (!(w->alive[fiber.warp] >> fiber.lane & 1)) continue;
        if (!first) first = &fiber;
        if (!same(first->place, fiber.place))
            fail(
                text("threads of one block wait at different barriers: thread %u at ", first->thread.x) +
                text(first->place) + text(", thread %u at ", fiber.thread.x) + text(fiber.place)
            );
        fiber.waits = NONE;
    }
    for (unsigned i = 0; i < w->warps; ++i) w->ready[i] = w->alive[i];
    w->at_barrier = 0;
}

void wait_for_block(Place place) {
    Worker* w = worker();
    Fiber* fiber = current(w);
    fiber->waits = SYNCTHREADS;
    fiber->place = place;
    w->ready[fiber->warp] &= ~(1u << fiber->lane);
    if (++w->at_barrier == w->living) release_block(w);
    wait(w);
}

// Lets the lanes of `mask` go on, with their results, if all that live have come.
inline void release_warp(Worker* w, unsigned warp, uint32_t mask) {
    uint32_t lanes = mask & w->alive[warp];
    if (lanes & ~w->waiting[warp]) return;
    Fiber* fibers = &w->fibers[warp * LANES];
    const Fiber& first = fibers[lowest(lanes)];
    uint32_t votes = 0;
    for (uint32_t rest = lanes; rest; rest &= rest - 1) {
        const Fiber& fiber = fibers[lowest(rest)];
        if (fiber.mask != mask)
            fail(
                text("lane %u waits for the lanes %08x at ", fiber.lane, fiber.mask) + text(fiber.place) +
                text(", and one of them for %08x", mask)
            );
        if (fiber.waits != first.waits || !same(fiber.place, first.place))
            fail(
                text("lane %u is at %s, ", first.lane, NAMES[first.waits]) + text(first.place) +
                text(", and lane %u at %s, ", fiber.lane, NAMES[fiber.waits]) + text(fiber.place)
            );
        if (fiber.value) votes |= 1u << fiber.lane;
    }
    if (first.waits == MMA_S8) {
        if (lanes != 0xffffffffu)
            fail(text("%s needs all lanes, and %08x have come, at ", NAMES[first.waits], lanes) + text(first.place));
        void* all[LANES];
        for (unsigned lane = 0; lane < LANES; ++lane) all[lane] = (void*)fibers[lane].value;
        first.together(all);
    }
    for (uint32_t rest = lanes; rest; rest &= rest - 1) {
        Fiber& fiber = fibers[lowest(rest)];
        switch (fiber.waits) {
            case BALLOT: fiber.result = votes; break;
            case ANY: fiber.result = votes != 0; break;
            case ALL: fiber.result = votes == lanes; break;
            // What a lane has that takes no part is not defined: poison.
            default: fiber.result = lanes >> fiber.source & 1 ? fibers[fiber.source].value : ~uint64_t(0);
        }
    }
    for (uint32_t rest = lanes; rest; rest &= rest - 1) fibers[lowest(rest)].waits = NONE;
    w->waiting[warp] &= ~lanes;
    w->ready[warp] |= lanes;
}

uint64_t wait_for_lanes(Operation operation, uint32_t mask, uint64_t value, uint32_t source, Place place) {
    Worker* w = worker();
    Fiber* fiber = current(w);
    uint32_t self = 1u << fiber->lane;
    fiber->place = place;
    if (!(mask & self)) fail(text("%s names the lanes %08x without its own, at ", NAMES[operation], mask) + text(place));
    fiber->waits = operation;
    fiber->mask = mask;
    fiber->value = value;
    fiber->source = source;
    w->waiting[fiber->warp] |= self;
    w->ready[fiber->warp] &= ~self;
    release_warp(w, fiber->warp, mask);
    wait(w);
    return fiber->result;
}

void do_together(Operation operation, Together what, void* mine, Place place) {
    current(worker())->together = what;
    wait_for_lanes(operation, 0xffffffffu, (uint64_t)mine, 0, place);
}

// --- copies that arrive late ------------------------------------------------------------------------------------------

inline Copies& copies_of_thread() { return worker()->copies[current(worker())->thread.x]; }

void start_copy(void* target, const void* source) {
    if (((uintptr_t)target | (uintptr_t)source) % 16) fail("misaligned address of a copy of 16 bytes");
    copies_of_thread().pending.push_back({target, source});
}

void commit_copies() {
    Copies& copies = copies_of_thread();
    copies.groups.push_back(copies.pending.size());
}

void finish_copies(unsigned groups_left) {
    Copies& copies = copies_of_thread();
    if (copies.groups.size() <= groups_left) return;
    size_t done = copies.groups.size() - groups_left, end = copies.groups[done - 1];
    for (size_t i = 0; i < end; ++i) memcpy(copies.pending[i].target, copies.pending[i].source, 16);
    copies.pending.erase(copies.pending.begin(), copies.pending.begin() + end);
    copies.groups.erase(copies.groups.begin(), copies.groups.begin() + done);
    for (size_t& group : copies.groups) group -= end;
}

// A thread returned. Those that wait need not wait for it.
inline void leave(Worker* w, Fiber* fiber) {
    uint32_t self = 1u << fiber->lane;
    w->alive[fiber->warp] &= ~self;
    w->ready[fiber->warp] &= ~self;
    --w->living;
    if (w->living && w->at_barrier == w->living) release_block(w);
    for (uint32_t rest = w->waiting[fiber->warp]; rest; rest &= w->waiting[fiber->warp]) {
        unsigned lane = lowest(rest);
        release_warp(w, fiber->warp, w->fibers[fiber->warp * LANES + lane].mask);
        rest &= ~(1u << lane);
    }
}

// Runs a thread, and then, on the same stack, those whose turn it is and that haven't begun.
inline void fiber_main() {
    Worker* w = worker();
    for (;;) {
        w->launch->kernel->body(w->launch->arguments);
        Fiber* ended = current(w);
        leave(w, ended);
        Fiber* next = next_ready(w, ended->warp, ended->lane);
        w->current = next;
        if (next && next->stack < 0) {
            next->stack = ended->stack;
            continue;
        }
        w->free_stacks[w->num_free++] = ended->stack;
        kestrel_switch(&ended->stack_pointer, next ? next->stack_pointer : w->scheduler);
    }
}

// --- blocks -----------------------------------------------------------------------------------------------------------

// Where the block's fibers stopped, if not all of them returned.
inline std::string deadlock(const Worker* w) {
    std::string message = where(w) + ": threads wait for ever:";
    int told = 0;
    const Fiber* last = nullptr;
    for (unsigned i = 0; i < w->threads && told < 6; ++i) {
        const Fiber& fiber = w->fibers[i];
        if (!(w->alive[fiber.warp] >> fiber.lane & 1)) continue;
        if (last && last->waits == fiber.waits && same(last->place, fiber.place)) continue;
        message += text("%s thread %u and after at %s, ", told++ ? ";" : "", i, NAMES[fiber.waits]) + text(fiber.place);
        if (fiber.waits != SYNCTHREADS && fiber.waits != WAIT_UNTIL_ALL) message += text(" (lanes %08x)", fiber.mask);
        last = &fiber;
    }
    return message;
}

inline void begin_block(Worker* w, uint64_t number) {
    Launch* launch = w->launch;
    const Triple& grid = launch->grid;
    w->block = {(unsigned)(number % grid.x), (unsigned)(number / grid.x % grid.y), (unsigned)(number / grid.x / grid.y)};
    w->threads = w->living = launch->block;
    w->warps = (launch->block + LANES - 1) / LANES;
    w->at_barrier = 0;
    w->is_waiter = false;
    w->random = launch->seed ^ (number * 0x2545f4914f6cdd1dull);
    w->num_free = 0;
    for (unsigned i = w->num_stacks; i > 0; --i) w->free_stacks[w->num_free++] = (int)i - 1;
    for (unsigned i = 0; i < w->warps; ++i) {
        unsigned lanes = launch->block - i * LANES;
        w->ready[i] = w->alive[i] = lanes >= LANES ? 0xffffffffu : (1u << lanes) - 1;
        w->waiting[i] = 0;
    }
    for (unsigned i = 0; i < launch->block; ++i) {
        Fiber& fiber = w->fibers[i];
        fiber.thread = {i, 0, 0};
        fiber.warp = i / LANES;
        fiber.lane = i % LANES;
        fiber.waits = NONE;
        fiber.stack = -1;
        w->copies[i].pending.clear();
        w->copies[i].groups.clear();
    }
}

// Until all threads of its block have ended, or those that haven't wait.
inline void run_block(Worker* w) {
    Fiber* first = next_ready(w, 0, 0);
    w->current = first;
    kestrel_switch(&w->scheduler, entry_of(w, first));
}

}  // namespace kestrel_machine
