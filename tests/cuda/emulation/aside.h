// Blocks that wait for other blocks of their launch, as on a card those do that it has begun.
//
// Where all threads of a block wait, it is put aside with its shared memory, and the same thread of the processor runs
// other blocks before it goes on. Nobody waits for ever: blocks that nobody can help any more are an error of the
// launch. So are as many that wait, one after the other or not, as the card may have at once, where there are more:
// those may not have begun. That doesn't depend on which blocks happen to be on their way here.
#pragma once

#include "fibers.h"

namespace kestrel_machine {

static unsigned processors = 1;  // of this card: so many blocks it has begun at least, however much each takes

void may_wait_for_others(Place place) {
    Worker* w = worker();
    if (w->is_waiter) return;
    w->is_waiter = true;
    uint64_t waiters = ++w->launch->waiters;
    if (waiters < processors || w->launch->num_blocks <= processors) return;
    fail(
        text("%u blocks wait for others, and a card of %u processors", (unsigned)waiters, processors) +
        " may have no room for those that haven't begun, at " + text(place)
    );
}

inline bool may_go_on(const Fiber& fiber) {
    return fiber.waits == WAIT_UNTIL_ALL && __atomic_load_n(fiber.counter, __ATOMIC_ACQUIRE) == 0;
}

inline bool may_go_on(const Worker* w) {
    for (unsigned i = 0; i < w->threads; ++i)
        if (may_go_on(w->fibers[i])) return true;
    return false;
}

inline bool waits_for_others(const Worker* w) {
    for (unsigned i = 0; i < w->threads; ++i)
        if (w->fibers[i].waits == WAIT_UNTIL_ALL) return true;
    return false;
}

// variables: the calling thread's shared ones, of that size.
inline void put_aside(Worker* w, const char* variables, size_t bytes) {
    w->shared_aside.assign(variables, variables + bytes);
    std::lock_guard<std::mutex> lock(w->launch->aside_mutex);
    w->launch->aside.push_back(w);
}

// A block of this crew that may go on. Null: there is none.
inline Worker* take_back(Launch* launch, const Crew* crew, char* variables) {
    std::lock_guard<std::mutex> lock(launch->aside_mutex);
    for (size_t i = 0; i < launch->aside.size(); ++i) {
        Worker* w = launch->aside[i];
        if (w->crew != crew || !may_go_on(w)) continue;
        launch->aside.erase(launch->aside.begin() + i);
        memcpy(variables, w->shared_aside.data(), w->shared_aside.size());
        for (unsigned j = 0; j < w->threads; ++j) {
            Fiber& fiber = w->fibers[j];
            if (!may_go_on(fiber)) continue;
            fiber.waits = NONE;
            w->ready[fiber.warp] |= 1u << fiber.lane;
        }
        return w;
    }
    return nullptr;
}

// Why those that wait do so for ever. Nothing: somebody may still help them, or nobody waits.
inline std::string hopeless(Launch* launch) {
    std::lock_guard<std::mutex> lock(launch->aside_mutex);
    uint64_t ended = launch->ended, waiting = 0;  // in this order: whoever has ended changes no counter any more
    for (const Worker* w : launch->aside) {
        if (may_go_on(w)) return "";
        ++waiting;
    }
    if (waiting == 0) return "";
    return waiting + ended == launch->num_blocks ? deadlock(launch->aside[0]) : "";
}

}  // namespace kestrel_machine
