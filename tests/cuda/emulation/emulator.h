// What a card's compiler knows and a processor's doesn't, so that kernels compile unchanged: it is included before them.
//
// The machine behind it is in fibers.h and launcher.cpp, the numbers and instructions in instructions.h. Errors that
// the compiler's checks find are told with the line of the kernel, see checks.h.
#pragma once

#include <string.h>

#include "machine.h"

#define __device__
#define __host__
#define __constant__ static
#define __shared__ static thread_local __attribute__((used))  // else what nobody writes is known to be zero
#define __forceinline__ inline
#define __align__(bytes) __attribute__((aligned(bytes)))

#define KESTREL_DEVICE inline

#define threadIdx (kestrel_machine::view()->current->thread)
#define blockIdx (kestrel_machine::view()->block)
#define blockDim (kestrel_machine::view()->dimensions)
#define gridDim (kestrel_machine::view()->grid)

#define KESTREL_EXPORT extern "C" __attribute__((visibility("default")))
#define KESTREL_KERNEL(name, threads, Arguments) KESTREL_KERNEL_NAMED(name, threads, Arguments)
#define KESTREL_KERNEL_SHARING(name, threads, blocks, Arguments) KESTREL_KERNEL_NAMED(name, threads, Arguments)
#define KESTREL_KERNEL_NAMED(name, threads, Arguments)                                                                \
    static void name(const Arguments& args);                                                                         \
    KESTREL_EXPORT const unsigned kestrel_size_##name = sizeof(Arguments);                                            \
    KESTREL_EXPORT int kestrel_launch_##name(                                                                        \
        const void* arguments, unsigned x, unsigned y, unsigned z, unsigned block, unsigned shared_bytes             \
    ) {                                                                                                              \
        static_assert(__is_trivially_copyable(Arguments), "arguments travel as bytes");                              \
        static_assert(sizeof(Arguments) <= 4096, "that is all a launch can carry");                                  \
        Arguments copy;                                                                                              \
        memcpy(&copy, arguments, sizeof copy);                                                                       \
        auto body = [](const void* given) { name(*(const Arguments*)given); };                                       \
        return kestrel_machine::launch({#name, threads, body}, &copy, {x, y, z}, block, shared_bytes);               \
    }                                                                                                                \
    static void name(const Arguments& args)

#include "instructions.h"
