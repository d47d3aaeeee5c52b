"""What kernels written as LLVM IR share: sums, exponentials, tasks and how they are cut into shares.

Kernels work on 16 lanes at a time, which LLVM maps to what the processor has (AVX-512, two AVX2 registers,
four NEON ones), so the text is the same for all of them.

A kernel `name` takes a task (one struct of 8-byte fields) and the first and last of its items. `name_share`
takes the task alone and does the share of the thread that calls it. The team is asked how large it is:
OpenMP may give fewer threads than were wanted.
"""

from __future__ import annotations

import struct
from typing import Literal

FieldType = Literal["i64", "ptr", "double"]
Fields = tuple[tuple[str, FieldType], ...]

TASK_HEAD: Fields = (("items", "i64"), ("thread_num", "ptr"), ("num_threads", "ptr"))
"""How every task begins: how many items there are, and functions of the team."""

COMMON = """
declare <16 x float> @llvm.fmuladd.v16f32(<16 x float>, <16 x float>, <16 x float>)
declare <16 x float> @llvm.fabs.v16f32(<16 x float>)
declare <16 x float> @llvm.masked.load.v16f32.p0(ptr, i32 immarg, <16 x i1>, <16 x float>)
declare void @llvm.masked.store.v16f32.p0(<16 x float>, ptr, i32 immarg, <16 x i1>)
declare void @llvm.masked.store.v16i8.p0(<16 x i8>, ptr, i32 immarg, <16 x i1>)

define internal float @sum(<16 x float> %v) alwaysinline {
  %a = shufflevector <16 x float> %v, <16 x float> poison, <8 x i32> <i32 0,i32 1,i32 2,i32 3,i32 4,i32 5,i32 6,i32 7>
  %b = shufflevector <16 x float> %v, <16 x float> poison, <8 x i32> <i32 8,i32 9,i32 10,i32 11,i32 12,i32 13,i32 14,i32 15>
  %c = fadd <8 x float> %a, %b
  %d = shufflevector <8 x float> %c, <8 x float> poison, <4 x i32> <i32 0,i32 1,i32 2,i32 3>
  %e = shufflevector <8 x float> %c, <8 x float> poison, <4 x i32> <i32 4,i32 5,i32 6,i32 7>
  %f = fadd <4 x float> %d, %e
  %g = shufflevector <4 x float> %f, <4 x float> poison, <2 x i32> <i32 0,i32 1>
  %h = shufflevector <4 x float> %f, <4 x float> poison, <2 x i32> <i32 2,i32 3>
  %i = fadd <2 x float> %g, %h
  %j = extractelement <2 x float> %i, i32 0
  %k = extractelement <2 x float> %i, i32 1
  %l = fadd float %j, %k
  ret float %l
}

define internal <16 x float> @splat(float %v) alwaysinline {
  %a = insertelement <16 x float> poison, float %v, i32 0
  %b = shufflevector <16 x float> %a, <16 x float> poison, <16 x i32> zeroinitializer
  ret <16 x float> %b
}

; The larger of each pair. Where one is not a number, which of the two is not said.
define internal <16 x float> @larger(<16 x float> %a, <16 x float> %b) alwaysinline {
  %more = fcmp ogt <16 x float> %a, %b
  %c = select <16 x i1> %more, <16 x float> %a, <16 x float> %b
  ret <16 x float> %c
}

; The largest of all, under the same condition.
define internal float @largest(<16 x float> %v) alwaysinline {
  %a = shufflevector <16 x float> %v, <16 x float> poison, <8 x i32> <i32 0,i32 1,i32 2,i32 3,i32 4,i32 5,i32 6,i32 7>
  %b = shufflevector <16 x float> %v, <16 x float> poison, <8 x i32> <i32 8,i32 9,i32 10,i32 11,i32 12,i32 13,i32 14,i32 15>
  %ab.more = fcmp ogt <8 x float> %a, %b
  %ab = select <8 x i1> %ab.more, <8 x float> %a, <8 x float> %b
  %c = shufflevector <8 x float> %ab, <8 x float> poison, <4 x i32> <i32 0,i32 1,i32 2,i32 3>
  %d = shufflevector <8 x float> %ab, <8 x float> poison, <4 x i32> <i32 4,i32 5,i32 6,i32 7>
  %cd.more = fcmp ogt <4 x float> %c, %d
  %cd = select <4 x i1> %cd.more, <4 x float> %c, <4 x float> %d
  %e = shufflevector <4 x float> %cd, <4 x float> poison, <2 x i32> <i32 0,i32 1>
  %f = shufflevector <4 x float> %cd, <4 x float> poison, <2 x i32> <i32 2,i32 3>
  %ef.more = fcmp ogt <2 x float> %e, %f
  %ef = select <2 x i1> %ef.more, <2 x float> %e, <2 x float> %f
  %g = shufflevector <2 x float> %ef, <2 x float> poison, <1 x i32> <i32 0>
  %h = shufflevector <2 x float> %ef, <2 x float> poison, <1 x i32> <i32 1>
  %gh.more = fcmp ogt <1 x float> %g, %h
  %gh = select <1 x i1> %gh.more, <1 x float> %g, <1 x float> %h
  %l = extractelement <1 x float> %gh, i32 0
  ret float %l
}

; Which of 16 places from %first on are before %end.
define internal <16 x i1> @before(i64 %first, i64 %end) alwaysinline {
  %left = sub i64 %end, %first
  %few = icmp slt i64 %left, 16
  %capped = select i1 %few, i64 %left, i64 16
  %count = trunc i64 %capped to i32
  %a = insertelement <16 x i32> poison, i32 %count, i32 0
  %b = shufflevector <16 x i32> %a, <16 x i32> poison, <16 x i32> zeroinitializer
  %mask = icmp slt <16 x i32> <i32 0,i32 1,i32 2,i32 3,i32 4,i32 5,i32 6,i32 7,i32 8,i32 9,i32 10,i32 11,i32 12,i32 13,i32 14,i32 15>, %b
  ret <16 x i1> %mask
}
"""


def _float(value: float) -> str:
    """A float32 as LLVM writes it: the bits of the double with that value."""
    single = struct.unpack("<f", struct.pack("<f", value))[0]
    return f"0x{struct.unpack('<Q', struct.pack('<d', single))[0]:016X}"


ROUNDING = 1.5 * 2**23
"""Added to a number of less than 2**22, it rounds it, ties to even: the low bits are those of the integer."""


def splat_of(value: float) -> str:
    """A constant of 16 equal lanes."""
    return f"splat (float {_float(value)})"


def _exponential() -> str:
    """e ** x to about 1e-7 of it; 0 below the smallest normal number, infinity above the largest, not a
    number where x isn't. x = n ln 2 + r with ln 2 in two parts, and a polynomial of degree 6 in r (Cephes' expf).
    """
    coefficients = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 0.5)
    lines = [
        "define internal <16 x float> @exponential(<16 x float> %x) alwaysinline {",
        _fma("shifted", "%x", splat_of(1.44269504088896341), splat_of(ROUNDING)),
        f"  %n = fsub <16 x float> %shifted, {splat_of(ROUNDING)}",
        _fma("r0", "%n", splat_of(-0.693359375), "%x"),
        _fma("r", "%n", splat_of(2.12194440e-4), "%r0"),
        _fma("y1", "%r", splat_of(coefficients[0]), splat_of(coefficients[1])),
        *(_fma(f"y{i}", f"%y{i - 1}", "%r", splat_of(coefficients[i])) for i in range(2, 6)),
        "  %rr = fmul <16 x float> %r, %r",
        _fma("z", "%y5", "%rr", "%r"),
        f"  %mantissa = fadd <16 x float> %z, {splat_of(1.0)}",
        "  %bits = bitcast <16 x float> %shifted to <16 x i32>",
        "  %exponent = shl <16 x i32> %bits, splat (i32 23)",
        f"  %power.bits = add <16 x i32> %exponent, splat (i32 {0x3F800000})",
        "  %power = bitcast <16 x i32> %power.bits to <16 x float>",
        "  %e = fmul <16 x float> %mantissa, %power",
        f"  %small = fcmp olt <16 x float> %x, {splat_of(-87.3)}",
        f"  %large = fcmp ogt <16 x float> %x, {splat_of(88.3)}",
        "  %e0 = select <16 x i1> %small, <16 x float> zeroinitializer, <16 x float> %e",
        f"  %e1 = select <16 x i1> %large, <16 x float> {splat_of(float('inf'))}, <16 x float> %e0",
        "  ret <16 x float> %e1",
        "}",
    ]
    return "\n".join(lines) + "\n"


def _fma(name: str, a: str, b: str, c: str) -> str:
    return (
        f"  %{name} = call <16 x float> @llvm.fmuladd.v16f32"
        f"(<16 x float> {a}, <16 x float> {b}, <16 x float> {c})"
    )


COMMON += _exponential()


ENTRY = "(ptr %task, i64 %start, i64 %stop) {\nentry:\n"
"""How every kernel begins behind its name."""


def load_fields(fields: Fields) -> str:
    """Every field of %task as a value of its name."""
    lines = []
    for index, (name, kind) in enumerate(TASK_HEAD + fields):
        lines.append(f"  %{name}.at = getelementptr i64, ptr %task, i64 {index}")
        lines.append(f"  %{name} = load {kind}, ptr %{name}.at")
    return "\n".join(lines) + "\n"


def share(name: str) -> str:
    """The entry for a team's threads."""
    return (
        f"define void @{name}_share(ptr %task) {{\n"
        + load_fields(())
        + f"""
  %threads32 = call i32 %num_threads()
  %threads = sext i32 %threads32 to i64
  %number32 = call i32 %thread_num()
  %number = sext i32 %number32 to i64
  %following = add i64 %number, 1
  %before = mul i64 %items, %number
  %start = sdiv i64 %before, %threads
  %behind = mul i64 %items, %following
  %stop = sdiv i64 %behind, %threads
  call void @{name}(ptr %task, i64 %start, i64 %stop)
  ret void
}}
"""
    )
