// What the compiler's own checks call (-fsanitize=alignment,bounds,...), in place of the library that belongs to them:
// each becomes an error of the launch, with the line.
#pragma once

#include <sys/types.h>

#include "fibers.h"

namespace kestrel_machine {

struct CheckedPlace {  // as compilers lay it out
    const char* file;
    unsigned line, column;
};

// First in whatever a check hands over.
[[noreturn]] inline void fail_check(const void* data, const std::string& message) {
    const CheckedPlace* place = (const CheckedPlace*)data;
    fail(text(Place{place->file, (int)place->line}) + ": " + message);
}

}  // namespace kestrel_machine

#define KESTREL_CHECK extern "C" __attribute__((visibility("hidden"), used)) void

KESTREL_CHECK __ubsan_handle_type_mismatch_v1(void* data, void* address) {
    kestrel_machine::fail_check(data, kestrel_machine::text("misaligned address %p", address));
}
KESTREL_CHECK __ubsan_handle_out_of_bounds(void* data, void* index) {
    kestrel_machine::fail_check(data, kestrel_machine::text("index %zd is outside of the array", (ssize_t)index));
}
KESTREL_CHECK __ubsan_handle_shift_out_of_bounds(void* data, void*, void* distance) {
    kestrel_machine::fail_check(data, kestrel_machine::text("shift by %zd bits", (ssize_t)distance));
}
KESTREL_CHECK __ubsan_handle_divrem_overflow(void* data, void*, void*) {
    kestrel_machine::fail_check(data, "division of whole numbers by zero, or one that overflows");
}
KESTREL_CHECK __ubsan_handle_float_cast_overflow(void* data, void*) {
    kestrel_machine::fail_check(data, "the number doesn't fit in the type it is converted to");
}
KESTREL_CHECK __ubsan_handle_missing_return(void* data) {
    kestrel_machine::fail_check(data, "a function ends without a value");
}
