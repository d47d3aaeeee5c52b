"""The kernels for strips as LLVM IR: a product with one vector, and rows as float32.

They work on 16 lanes at a time, which LLVM maps to what the processor has (AVX-512, two AVX2 registers, four
NEON ones), so the text is the same for all of them.

Sums have one order, written out below: 16 lanes, each over the blocks from the front, then the lanes in
halves. So a row has the same bits whatever the number of rows or threads.
"""

from __future__ import annotations

from engine.cpu.vector_ir import COMMON
from engine.weights.strips import BLOCK

ROWS_AT_ONCE = 4  # share what is loaded of x, and hide the latency of each other's additions

# How far ahead codes are asked for. The processor's own prefetching loses its way between several short rows:
# on two Zen 5 cores 4-bit codes came at 36 GB/s without, at 49 with 8 KiB (151936 x 896), and those of long
# rows at 22 and 41 (896 x 4864).
_AHEAD_BYTES = 8192
_LINE_BYTES = 64  # of the cache

_PREFETCH = "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)\n"

# The codes of a block of 32 inputs as two vectors: inputs 0 … 15 and 16 … 31.
_CODES = {
    4: """
define internal [2 x <16 x float>] @codes4(ptr %row, i64 %block) alwaysinline {
  %at = getelementptr <16 x i8>, ptr %row, i64 %block
  %bytes = load <16 x i8>, ptr %at, align 1
  %wide = sext <16 x i8> %bytes to <16 x i32>
  %up = shl <16 x i32> %wide, splat (i32 28)
  %low = ashr <16 x i32> %up, splat (i32 28)
  %high = ashr <16 x i32> %wide, splat (i32 4)
  %first = sitofp <16 x i32> %low to <16 x float>
  %second = sitofp <16 x i32> %high to <16 x float>
  %r0 = insertvalue [2 x <16 x float>] poison, <16 x float> %first, 0
  %r1 = insertvalue [2 x <16 x float>] %r0, <16 x float> %second, 1
  ret [2 x <16 x float>] %r1
}
""",
    8: """
define internal [2 x <16 x float>] @codes8(ptr %row, i64 %block) alwaysinline {
  %at = getelementptr <32 x i8>, ptr %row, i64 %block
  %next = getelementptr i8, ptr %at, i64 16
  %low = load <16 x i8>, ptr %at, align 1
  %high = load <16 x i8>, ptr %next, align 1
  %first = sitofp <16 x i8> %low to <16 x float>
  %second = sitofp <16 x i8> %high to <16 x float>
  %r0 = insertvalue [2 x <16 x float>] poison, <16 x float> %first, 0
  %r1 = insertvalue [2 x <16 x float>] %r0, <16 x float> %second, 1
  ret [2 x <16 x float>] %r1
}
""",
}

# A thread's share of the rows, from a `Task` of `strip_kernels.py`. `shift` turns a block's number into its
# group's. The team is asked how large it is: OpenMP may give fewer threads than were wanted.
_SHARE = """
define void @{name}_share(ptr %task) {{
  %codes = load ptr, ptr %task
  %p1 = getelementptr ptr, ptr %task, i64 1
  %scales = load ptr, ptr %p1
  %p2 = getelementptr ptr, ptr %task, i64 2
  %x = load ptr, ptr %p2
  %p3 = getelementptr ptr, ptr %task, i64 3
  %out = load ptr, ptr %p3
  %p4 = getelementptr i64, ptr %task, i64 4
  %blocks = load i64, ptr %p4
  %p5 = getelementptr i64, ptr %task, i64 5
  %shift = load i64, ptr %p5
  %p6 = getelementptr i64, ptr %task, i64 6
  %rows = load i64, ptr %p6
  %p7 = getelementptr ptr, ptr %task, i64 7
  %thread_num = load ptr, ptr %p7
  %p8 = getelementptr ptr, ptr %task, i64 8
  %num_threads = load ptr, ptr %p8
  %p9 = getelementptr ptr, ptr %task, i64 9
  %offsets = load ptr, ptr %p9
  %threads32 = call i32 %num_threads()
  %threads = sext i32 %threads32 to i64
  %number32 = call i32 %thread_num()
  %number = sext i32 %number32 to i64
  %following = add i64 %number, 1
  %before = mul i64 %rows, %number
  %start = sdiv i64 %before, %threads
  %behind = mul i64 %rows, %following
  %stop = sdiv i64 %behind, %threads
  call void @{name}(ptr %codes, ptr %scales, ptr %offsets, ptr %x, ptr %out, i64 %blocks, i64 %shift, i64 %start, i64 %stop)
  ret void
}}
"""

_SIGNATURE = (
    "ptr %codes, ptr %scales, ptr %offsets, ptr %x, ptr %out, i64 %blocks, i64 %shift, i64 %start, i64 %stop"
)


def _lines(template: str, count: int, **values: object) -> str:
    return "".join(template.format(r=row, **values) for row in range(count))


def _dot_rows(name: str, bits: int, rows: int, *, offsets: bool) -> str:
    """`rows` rows at a time, from `first`, to %out[first + r]. An offset is added to every weight of its
    block, so it meets the sum of the block's x.
    """
    head = """
define internal void @{name}_rows{rows}(ptr %codes, ptr %scales, ptr %offsets, ptr %x, ptr %out, i64 %blocks, i64 %shift, i64 %first) alwaysinline {{
entry:
  %width = mul i64 %blocks, {block_bytes}
  %last = sub i64 %blocks, 1
  %last_group = lshr i64 %last, %shift
  %groups = add i64 %last_group, 1
"""
    per_row = """
  %n{r} = add i64 %first, {r}
  %c{r} = mul i64 %n{r}, %width
  %row{r} = getelementptr i8, ptr %codes, i64 %c{r}
  %g{r} = mul i64 %n{r}, %groups
  %srow{r} = getelementptr float, ptr %scales, i64 %g{r}
  %orow{r} = getelementptr float, ptr %offsets, i64 %g{r}
"""
    loop = """
  br label %loop
loop:
  %b = phi i64 [ 0, %entry ], [ %b.next, %loop ]
"""
    phis = "  %acc{r} = phi <16 x float> [ zeroinitializer, %entry ], [ %acc{r}.next, %loop ]\n"
    shared = """
  %xat = getelementptr <32 x float>, ptr %x, i64 %b
  %xnext = getelementptr float, ptr %xat, i64 16
  %x0 = load <16 x float>, ptr %xat, align 4
  %x1 = load <16 x float>, ptr %xnext, align 4
  %xs = fadd <16 x float> %x0, %x1
  %group = lshr i64 %b, %shift
"""
    body = """
  %v{r} = call [2 x <16 x float>] @codes{bits}(ptr %row{r}, i64 %b)
  %lo{r} = extractvalue [2 x <16 x float>] %v{r}, 0
  %hi{r} = extractvalue [2 x <16 x float>] %v{r}, 1
  %sat{r} = getelementptr float, ptr %srow{r}, i64 %group
  %s{r} = load float, ptr %sat{r}, align 4
  %ss{r} = call <16 x float> @splat(float %s{r})
  %p{r} = fmul <16 x float> %lo{r}, %x0
  %q{r} = call <16 x float> @llvm.fmuladd.v16f32(<16 x float> %hi{r}, <16 x float> %x1, <16 x float> %p{r})
  %acc{r}.{scaled} = call <16 x float> @llvm.fmuladd.v16f32(<16 x float> %q{r}, <16 x float> %ss{r}, <16 x float> %acc{r})
"""
    shift = """
  %oat{r} = getelementptr float, ptr %orow{r}, i64 %group
  %o{r} = load float, ptr %oat{r}, align 4
  %os{r} = call <16 x float> @splat(float %o{r})
  %acc{r}.next = call <16 x float> @llvm.fmuladd.v16f32(<16 x float> %xs, <16 x float> %os{r}, <16 x float> %acc{r}.scaled)
"""
    end = """
  %b.next = add i64 %b, 1
  %more = icmp slt i64 %b.next, %blocks
  br i1 %more, label %loop, label %done
done:
"""
    store = """
  %y{r} = call float @sum(<16 x float> %acc{r}.next)
  %yat{r} = getelementptr float, ptr %out, i64 %n{r}
  store float %y{r}, ptr %yat{r}, align 4
"""
    return (
        head.format(name=name, rows=rows, block_bytes=BLOCK * bits // 8)
        + _lines(per_row, rows)
        + (_ahead() if rows > 1 else "")
        + loop
        + _lines(phis, rows)
        + shared
        + (_prefetch(bits, rows) if rows > 1 else "")
        + _lines(body, rows, bits=bits, scaled="scaled" if offsets else "next")
        + (_lines(shift, rows) if offsets else "")
        + end
        + _lines(store, rows)
        + "  ret void\n}\n"
    )


def _ahead() -> str:
    """%ahead and %sahead, behind codes and scales that are worked on: at least so far that all rows of the
    next turn have been asked for when it begins.
    """
    return f"""
  %turn = mul i64 %width, {ROWS_AT_ONCE}
  %long = icmp ugt i64 %turn, {_AHEAD_BYTES}
  %distance = select i1 %long, i64 %turn, i64 {_AHEAD_BYTES}
  %ahead = getelementptr i8, ptr %row0, i64 %distance
  %sturn = udiv i64 %distance, %width
  %sdistance = mul i64 %sturn, %groups
  %sahead = getelementptr float, ptr %srow0, i64 %sdistance
"""


def _prefetch(bits: int, rows: int) -> str:
    """A turn's rows lie behind each other, so they are asked for in that order, as much for each block as it
    has; asking for what is not the process's own does nothing.
    """
    num_bytes = rows * BLOCK * bits // 8
    asked = f"""
  %turned = mul i64 %b, {num_bytes}
  %sat = mul i64 %group, {rows}
  %snear = getelementptr float, ptr %sahead, i64 %sat
  call void @llvm.prefetch.p0(ptr %snear, i32 0, i32 3, i32 1)
"""
    for line in range(0, num_bytes, _LINE_BYTES):
        asked += f"""
  %near{line}.at = add i64 %turned, {line}
  %near{line} = getelementptr i8, ptr %ahead, i64 %near{line}.at
  call void @llvm.prefetch.p0(ptr %near{line}, i32 0, i32 3, i32 1)
"""
    return asked


def _dot(bits: int, *, offsets: bool) -> str:
    """The product with one vector x (K,): `out` is y (N,)."""
    name = dot_name(bits, offsets=offsets)
    loop = f"""
define void @{name}({_SIGNATURE}) {{
entry:
  %count = sub i64 %stop, %start
  %rest = srem i64 %count, {ROWS_AT_ONCE}
  %even = sub i64 %stop, %rest
  br label %many.test
many.test:
  %n = phi i64 [ %start, %entry ], [ %n.next, %many ]
  %many.more = icmp slt i64 %n, %even
  br i1 %many.more, label %many, label %one.test
many:
  call void @{name}_rows{ROWS_AT_ONCE}(ptr %codes, ptr %scales, ptr %offsets, ptr %x, ptr %out, i64 %blocks, i64 %shift, i64 %n)
  %n.next = add i64 %n, {ROWS_AT_ONCE}
  br label %many.test
one.test:
  %m = phi i64 [ %even, %many.test ], [ %m.next, %one ]
  %one.more = icmp slt i64 %m, %stop
  br i1 %one.more, label %one, label %done
one:
  call void @{name}_rows1(ptr %codes, ptr %scales, ptr %offsets, ptr %x, ptr %out, i64 %blocks, i64 %shift, i64 %m)
  %m.next = add i64 %m, 1
  br label %one.test
done:
  ret void
}}
"""
    rows = "".join(_dot_rows(name, bits, count, offsets=offsets) for count in (ROWS_AT_ONCE, 1))
    return rows + loop + _SHARE.format(name=name)


def dot_name(bits: int, *, offsets: bool) -> str:
    return f"dot{bits}_offsets" if offsets else f"dot{bits}"


def _widen(bits: int) -> str:
    """Rows as float32: `out` is (N, K), x is not looked at, offsets may be null. Product and sum are each
    rounded, as the definition has it.
    """
    return f"""
define void @widen{bits}({_SIGNATURE}) {{
entry:
  %first = mul i64 %start, %blocks
  %end = mul i64 %stop, %blocks
  %per_group = shl i64 1, %shift
  %offset = icmp ne ptr %offsets, null
  %some = icmp slt i64 %first, %end
  br i1 %some, label %loop, label %done
loop:
  %b = phi i64 [ %first, %entry ], [ %b.next, %store ]
  %v = call [2 x <16 x float>] @codes{bits}(ptr %codes, i64 %b)
  %lo = extractvalue [2 x <16 x float>] %v, 0
  %hi = extractvalue [2 x <16 x float>] %v, 1
  %group = lshr i64 %b, %shift
  %sat = getelementptr float, ptr %scales, i64 %group
  %s = load float, ptr %sat, align 4
  %ss = call <16 x float> @splat(float %s)
  %lo.scaled = fmul <16 x float> %lo, %ss
  %hi.scaled = fmul <16 x float> %hi, %ss
  br i1 %offset, label %shifted, label %store
shifted:
  %oat = getelementptr float, ptr %offsets, i64 %group
  %o = load float, ptr %oat, align 4
  %os = call <16 x float> @splat(float %o)
  %lo.shifted = fadd <16 x float> %lo.scaled, %os
  %hi.shifted = fadd <16 x float> %hi.scaled, %os
  br label %store
store:
  %lo.value = phi <16 x float> [ %lo.scaled, %loop ], [ %lo.shifted, %shifted ]
  %hi.value = phi <16 x float> [ %hi.scaled, %loop ], [ %hi.shifted, %shifted ]
  %at = getelementptr <32 x float>, ptr %out, i64 %b
  %next = getelementptr float, ptr %at, i64 16
  store <16 x float> %lo.value, ptr %at, align 4
  store <16 x float> %hi.value, ptr %next, align 4
  %b.next = add i64 %b, 1
  %more = icmp slt i64 %b.next, %end
  br i1 %more, label %loop, label %done
done:
  ret void
}}
""" + _SHARE.format(name=f"widen{bits}")


def kernel_text() -> str:
    """The module with all of them: `KERNELS`, and the share of each for a thread of OpenMP's."""
    dots = "".join(_dot(bits, offsets=offsets) for bits in (4, 8) for offsets in (False, True))
    return COMMON + _PREFETCH + "".join(_CODES.values()) + dots + _widen(4) + _widen(8)


KERNELS = (
    *(dot_name(bits, offsets=offsets) for bits in (4, 8) for offsets in (False, True)),
    "widen4",
    "widen8",
)
