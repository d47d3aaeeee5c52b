"""The steps over the codes of one group as LLVM IR: 16 rows at a time, in the form of `vector_ir.py`."""

from __future__ import annotations

from engine.cpu.vector_ir import COMMON, ENTRY, Fields, load_fields, share, splat_of
from engine.weights.code_descent import FURTHEST
from engine.weights.strips import LARGEST_CODE, SMALLEST_CODE

LANES = 16
PULLS_AT_ONCE = 4  # of the sums over a group: they share what is loaded of the codes
IMPROVE: Fields = (
    ("local", "ptr"),
    ("slopes", "ptr"),
    ("codes", "ptr"),
    ("scales", "ptr"),
    ("changes", "ptr"),
    ("size", "i64"),
    ("rows", "i64"),
    ("narrow", "i64"),
)
"""Of a task, whose items are 16 rows each. local (size, size), slopes, codes, changes (size, rows), scales
(rows,), all float32; narrow: whether scales are rounded to float16.
"""

_TINY = 2.0**-126  # the smallest normal float32


def kernel_text() -> str:
    """The module."""
    return COMMON + _NARROWED + _IMPROVE + share("improve")


# float32 -> the nearest float16, the even one of two, as float32. Not LLVM's own conversion: where the
# processor has none, it calls a function that may not be there.
_NARROWED = f"""
define internal <16 x float> @narrowed(<16 x float> %x) alwaysinline {{
  %bits = bitcast <16 x float> %x to <16 x i32>
  %sign = and <16 x i32> %bits, splat (i32 {-(2**31)})
  %size = call <16 x float> @llvm.fabs.v16f32(<16 x float> %x)
  %size.bits = bitcast <16 x float> %size to <16 x i32>
  %last = lshr <16 x i32> %size.bits, splat (i32 13)
  %odd = and <16 x i32> %last, splat (i32 1)
  %half = add <16 x i32> %size.bits, splat (i32 {2**12 - 1})
  %up = add <16 x i32> %half, %odd
  %cut = and <16 x i32> %up, splat (i32 {-(2**13)})
  %normal = bitcast <16 x i32> %cut to <16 x float>
  %shifted = fadd <16 x float> %size, {splat_of(0.5)}
  %subnormal = fsub <16 x float> %shifted, {splat_of(0.5)}
  %small = fcmp olt <16 x float> %size, {splat_of(2.0**-14)}
  %finite = select <16 x i1> %small, <16 x float> %subnormal, <16 x float> %normal
  %large = fcmp ogt <16 x float> %finite, {splat_of(65504.0)}
  %rounded = select <16 x i1> %large, <16 x float> {splat_of(float("inf"))}, <16 x float> %finite
  %rounded.bits = bitcast <16 x float> %rounded to <16 x i32>
  %signed = or <16 x i32> %rounded.bits, %sign
  %y = bitcast <16 x i32> %signed to <16 x float>
  ret <16 x float> %y
}}
"""


def _fma(name: str, a: str, b: str, c: str) -> str:
    return (
        f"  {name} = call <16 x float> @llvm.fmuladd.v16f32"
        f"(<16 x float> {a}, <16 x float> {b}, <16 x float> {c})\n"
    )


def _load(name: str, address: str, *, beyond: str = "zeroinitializer") -> str:
    return (
        f"  {name} = call <16 x float> @llvm.masked.load.v16f32.p0"
        f"(ptr {address}, i32 4, <16 x i1> %mask, <16 x float> {beyond})\n"
    )


def _store(name: str, address: str) -> str:
    return (
        "  call void @llvm.masked.store.v16f32.p0"
        f"(<16 x float> {name}, ptr {address}, i32 4, <16 x i1> %mask)\n"
    )


def _pulls() -> str:
    """%p = local @ codes, some rows at a time; %dotN = codes . slopes and %curvatureN = codes . %p."""
    together = range(PULLS_AT_ONCE)
    phis = "".join(
        f"  %acc{i} = phi <16 x float> [ zeroinitializer, %pulls ], [ %acc{i}.next, %pull ]\n"
        for i in together
    )
    body = "".join(
        f"""
  %pl{i}.at = getelementptr float, ptr %pl.at, i64 {i}
  %pl{i} = load float, ptr %pl{i}.at, align 4
  %pl{i}.all = call <16 x float> @splat(float %pl{i})
"""
        + _fma(f"%acc{i}.next", f"%pl{i}.all", "%pc", f"%acc{i}")
        for i in together
    )
    sums = "".join(
        f"""
  %m{i} = add i64 %m, {i}
  %mp{i}.at = getelementptr <16 x float>, ptr %p, i64 %m{i}
  store <16 x float> %acc{i}.next, ptr %mp{i}.at, align 64
  %mc{i}.at = getelementptr <16 x float>, ptr %c, i64 %m{i}
  %mc{i} = load <16 x float>, ptr %mc{i}.at, align 64
  %ms{i}.at = getelementptr <16 x float>, ptr %s, i64 %m{i}
  %ms{i} = load <16 x float>, ptr %ms{i}.at, align 64
"""
        + _fma(f"%curvature{i + 1}", f"%mc{i}", f"%acc{i}.next", f"%curvature{i}")
        + _fma(f"%dot{i + 1}", f"%mc{i}", f"%ms{i}", f"%dot{i}")
        for i in together
    )
    return f"""
pulls:
  %m = phi i64 [ 0, %gather ], [ %m.next, %pulled ]
  %curvature0 = phi <16 x float> [ zeroinitializer, %gather ], [ %curvature{PULLS_AT_ONCE}, %pulled ]
  %dot0 = phi <16 x float> [ zeroinitializer, %gather ], [ %dot{PULLS_AT_ONCE}, %pulled ]
  br label %pull
pull:
  %n = phi i64 [ 0, %pulls ], [ %n.next, %pull ]
{phis}
  %pc.at = getelementptr <16 x float>, ptr %c, i64 %n
  %pc = load <16 x float>, ptr %pc.at, align 64
  %pl.row = mul i64 %n, %size
  %pl.index = add i64 %pl.row, %m
  %pl.at = getelementptr float, ptr %local, i64 %pl.index
{body}
  %n.next = add i64 %n, 1
  %n.more = icmp slt i64 %n.next, %size
  br i1 %n.more, label %pull, label %pulled
pulled:
{sums}
  %m.next = add i64 %m, {PULLS_AT_ONCE}
  %m.more = icmp slt i64 %m.next, %size
  br i1 %m.more, label %pulls, label %rescale
"""


# %old -> %new, the best scale for the codes as they are; the slopes with it.
_RESCALE = f"""
rescale:
  %some = call <16 x float> @larger(<16 x float> %curvature{PULLS_AT_ONCE}, <16 x float> {splat_of(_TINY)})
  %ideal.move = fdiv <16 x float> %dot{PULLS_AT_ONCE}, %some
  %ideal = fadd <16 x float> %old, %ideal.move
  %ideal.narrow = call <16 x float> @narrowed(<16 x float> %ideal)
  %best = select i1 %narrows, <16 x float> %ideal.narrow, <16 x float> %ideal
  %factor = fdiv <16 x float> %best, %old
  %near0 = fcmp olt <16 x float> %factor, {splat_of(FURTHEST)}
  %near1 = fcmp ogt <16 x float> %factor, {splat_of(1 / FURTHEST)}
  %near2 = fcmp ogt <16 x float> %curvature{PULLS_AT_ONCE}, zeroinitializer
  %near3 = and <16 x i1> %near0, %near1
  %near = and <16 x i1> %near3, %near2
  %new = select <16 x i1> %near, <16 x float> %best, <16 x float> %old
{_store("%new", "%scale.at")}
  %back = fsub <16 x float> %old, %new
  br label %shift
shift:
  %i = phi i64 [ 0, %rescale ], [ %i.next, %shift ]
  %is.at = getelementptr <16 x float>, ptr %s, i64 %i
  %is = load <16 x float>, ptr %is.at, align 64
  %ip.at = getelementptr <16 x float>, ptr %p, i64 %i
  %ip = load <16 x float>, ptr %ip.at, align 64
{_fma("%is.new", "%ip", "%back", "%is")}
  store <16 x float> %is.new, ptr %is.at, align 64
  %i.next = add i64 %i, 1
  %i.more = icmp slt i64 %i.next, %size
  br i1 %i.more, label %shift, label %code
"""

# One code after the other; each moves the slopes of those behind it.
_DESCEND = f"""
code:
  %j = phi i64 [ 0, %shift ], [ %j.next, %code.done ]
  %js.at = getelementptr <16 x float>, ptr %s, i64 %j
  %js = load <16 x float>, ptr %js.at, align 64
  %jc.at = getelementptr <16 x float>, ptr %c, i64 %j
  %jc = load <16 x float>, ptr %jc.at, align 64
  %local.row.index = mul i64 %j, %size
  %local.row = getelementptr float, ptr %local, i64 %local.row.index
  %jl.at = getelementptr float, ptr %local.row, i64 %j
  %jl = load float, ptr %jl.at, align 4
  %jl.all = call <16 x float> @splat(float %jl)
  %weight = fmul <16 x float> %jl.all, %new
  %step = fdiv <16 x float> {splat_of(1.0)}, %weight
{_fma("%wish", "%js", "%step", "%jc")}
  %whole = call <16 x float> @llvm.rint.v16f32(<16 x float> %wish)
  %above = call <16 x float> @larger(<16 x float> %whole, <16 x float> {splat_of(SMALLEST_CODE[4])})
  %below = fcmp olt <16 x float> %above, {splat_of(LARGEST_CODE[4])}
  %jc.new = select <16 x i1> %below, <16 x float> %above, <16 x float> {splat_of(LARGEST_CODE[4])}
  %j.index = mul i64 %j, %rows
  %j.lane = add i64 %j.index, %lane
  %jc.to = getelementptr float, ptr %codes, i64 %j.lane
{_store("%jc.new", "%jc.to")}
  %value.old = fmul <16 x float> %jc, %old
  %value.new = fmul <16 x float> %jc.new, %new
  %change = fsub <16 x float> %value.new, %value.old
  %change.to = getelementptr float, ptr %changes, i64 %j.lane
{_store("%change", "%change.to")}
  %jc.back = fsub <16 x float> %jc, %jc.new
  %j.back = fmul <16 x float> %jc.back, %new
  %j.next = add i64 %j, 1
  %j.more = icmp slt i64 %j.next, %size
  br i1 %j.more, label %spread, label %done
spread:
  %k = phi i64 [ %j.next, %code ], [ %k.next, %spread ]
  %ks.at = getelementptr <16 x float>, ptr %s, i64 %k
  %ks = load <16 x float>, ptr %ks.at, align 64
  %kl.at = getelementptr float, ptr %local.row, i64 %k
  %kl = load float, ptr %kl.at, align 4
  %kl.all = call <16 x float> @splat(float %kl)
{_fma("%ks.new", "%kl.all", "%j.back", "%ks")}
  store <16 x float> %ks.new, ptr %ks.at, align 64
  %k.next = add i64 %k, 1
  %k.more = icmp slt i64 %k.next, %size
  br i1 %k.more, label %spread, label %code.done
code.done:
  br label %code
done:
  %item.next = add i64 %item, 1
  br label %next
end:
  ret void
}}
"""

# %s, %c and %p hold the slopes, codes and pulls of 16 rows: in the tensors, a multiple of 4 KiB apart, they
# would drive each other out of the cache.
_IMPROVE = (
    "define void @improve"
    + ENTRY
    + load_fields(IMPROVE)
    + f"""
  %narrows = icmp ne i64 %narrow, 0
  %s = alloca <16 x float>, i64 %size, align 64
  %c = alloca <16 x float>, i64 %size, align 64
  %p = alloca <16 x float>, i64 %size, align 64
  br label %next
next:
  %item = phi i64 [ %start, %entry ], [ %item.next, %done ]
  %item.more = icmp slt i64 %item, %stop
  br i1 %item.more, label %begin, label %end
begin:
  %lane = mul i64 %item, {LANES}
  %mask = call <16 x i1> @before(i64 %lane, i64 %rows)
  %scale.at = getelementptr float, ptr %scales, i64 %lane
{_load("%old", "%scale.at", beyond=splat_of(1.0))}
  br label %gather
gather:
  %g = phi i64 [ 0, %begin ], [ %g.next, %gather ]
  %g.index = mul i64 %g, %rows
  %g.lane = add i64 %g.index, %lane
  %gs.from = getelementptr float, ptr %slopes, i64 %g.lane
{_load("%gs", "%gs.from")}
  %gs.to = getelementptr <16 x float>, ptr %s, i64 %g
  store <16 x float> %gs, ptr %gs.to, align 64
  %gc.from = getelementptr float, ptr %codes, i64 %g.lane
{_load("%gc", "%gc.from")}
  %gc.to = getelementptr <16 x float>, ptr %c, i64 %g
  store <16 x float> %gc, ptr %gc.to, align 64
  %g.next = add i64 %g, 1
  %g.more = icmp slt i64 %g.next, %size
  br i1 %g.more, label %gather, label %pulls
"""
    + _pulls()
    + _RESCALE
    + _DESCEND
)
