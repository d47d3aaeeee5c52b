"""Kernels that put rows of keys and values into int8 pages, and read them out again, as LLVM IR."""

from __future__ import annotations

from engine.cpu.vector_ir import ENTRY, ROUNDING, Fields, load_fields, splat_of
from engine.kv_geometry import LARGEST_CODE, PAGE

APPEND: Fields = (
    ("kv", "ptr"),  # the first row's heads (2G, D) float32
    ("row_stride", "i64"),  # floats from one row to the next
    ("layer", "ptr"),  # of the page that is written to
    ("first", "i64"),  # row of the page that the first one becomes
    ("heads", "i64"),  # 2G
    ("head_dim", "i64"),
)
"""Items: vectors, the heads of a row side by side."""

WIDEN: Fields = (
    ("pages", "ptr"),  # addresses of the pages
    ("offset", "i64"),  # of the layer within a page, bytes
    ("length", "i64"),  # tokens of these pages that count; behind them come zeros
    ("out", "ptr"),  # (2G, capacity, D) float32
    ("capacity", "i64"),
    ("heads", "i64"),  # 2G
    ("head_dim", "i64"),
)
"""Items: heads of pages, the heads of a page side by side."""

# A sum of x * 0 is zero, or not a number when any x is infinite or none: so the scale is, too.
APPEND_TEXT = (
    "define void @append"
    + ENTRY
    + load_fields(APPEND)
    + f"""
  %head.bytes = mul i64 %head_dim, {PAGE}
  %codes.bytes = mul i64 %head.bytes, %heads
  %scales = getelementptr i8, ptr %layer, i64 %codes.bytes
  br label %items.test
items.test:
  %item = phi i64 [ %start, %entry ], [ %item.next, %code.done ]
  %item.more = icmp slt i64 %item, %stop
  br i1 %item.more, label %begin, label %done
begin:
  %row = sdiv i64 %item, %heads
  %head = srem i64 %item, %heads
  %row.at = mul i64 %row, %row_stride
  %head.at = mul i64 %head, %head_dim
  %x.index = add i64 %row.at, %head.at
  %x = getelementptr float, ptr %kv, i64 %x.index
  %token = add i64 %first, %row
  %head.codes = mul i64 %head, %head.bytes
  %token.codes = mul i64 %token, %head_dim
  %code.index = add i64 %head.codes, %token.codes
  %codes = getelementptr i8, ptr %layer, i64 %code.index
  %head.scales = mul i64 %head, {PAGE}
  %scale.index = add i64 %head.scales, %token
  %scale.at = getelementptr float, ptr %scales, i64 %scale.index
  br label %peak
peak:
  %i = phi i64 [ 0, %begin ], [ %i.next, %peak ]
  %largest = phi <16 x float> [ zeroinitializer, %begin ], [ %largest.next, %peak ]
  %probe = phi <16 x float> [ zeroinitializer, %begin ], [ %probe.next, %peak ]
  %mask = call <16 x i1> @before(i64 %i, i64 %head_dim)
  %x.at = getelementptr float, ptr %x, i64 %i
  %v = call <16 x float> @llvm.masked.load.v16f32.p0(ptr %x.at, i32 4, <16 x i1> %mask, <16 x float> zeroinitializer)
  %magnitude = call <16 x float> @llvm.fabs.v16f32(<16 x float> %v)
  %largest.next = call <16 x float> @larger(<16 x float> %magnitude, <16 x float> %largest)
  %nothing = fmul <16 x float> %magnitude, zeroinitializer
  %probe.next = fadd <16 x float> %probe, %nothing
  %i.next = add i64 %i, 16
  %more = icmp slt i64 %i.next, %head_dim
  br i1 %more, label %peak, label %scaled
scaled:
  %amax = call float @largest(<16 x float> %largest.next)
  %found = call float @sum(<16 x float> %probe.next)
  %ratio = fdiv float %amax, {float(LARGEST_CODE)}
  %normal = fcmp oge float %ratio, 0x3810000000000000
  %kept = select i1 %normal, float %ratio, float 0.0
  %none = fcmp uno float %found, 0.0
  %scale = select i1 %none, float 0x7FF8000000000000, float %kept
  store float %scale, ptr %scale.at, align 4
  %some = fcmp ogt float %scale, 0.0
  %divisor = call <16 x float> @splat(float %scale)
  br label %code
code:
  %j = phi i64 [ 0, %scaled ], [ %j.next, %code ]
  %j.mask = call <16 x i1> @before(i64 %j, i64 %head_dim)
  %j.at = getelementptr float, ptr %x, i64 %j
  %w = call <16 x float> @llvm.masked.load.v16f32.p0(ptr %j.at, i32 4, <16 x i1> %j.mask, <16 x float> zeroinitializer)
  %quotient = fdiv <16 x float> %w, %divisor
  %rounded = fadd <16 x float> %quotient, {splat_of(ROUNDING)}
  %bits = bitcast <16 x float> %rounded to <16 x i32>
  %narrow = trunc <16 x i32> %bits to <16 x i8>
  %value = select i1 %some, <16 x i8> %narrow, <16 x i8> zeroinitializer
  %code.at = getelementptr i8, ptr %codes, i64 %j
  call void @llvm.masked.store.v16i8.p0(<16 x i8> %value, ptr %code.at, i32 1, <16 x i1> %j.mask)
  %j.next = add i64 %j, 16
  %j.more = icmp slt i64 %j.next, %head_dim
  br i1 %j.more, label %code, label %code.done
code.done:
  %item.next = add i64 %item, 1
  br label %items.test
done:
  ret void
}}
"""
)

WIDEN_TEXT = (
    "define void @widen"
    + ENTRY
    + load_fields(WIDEN)
    + f"""
  %head.bytes = mul i64 %head_dim, {PAGE}
  %codes.bytes = mul i64 %head.bytes, %heads
  br label %items.test
items.test:
  %item = phi i64 [ %start, %entry ], [ %item.next, %item.done ]
  %item.more = icmp slt i64 %item, %stop
  br i1 %item.more, label %begin, label %done
begin:
  %number = sdiv i64 %item, %heads
  %head = srem i64 %item, %heads
  %page.at = getelementptr ptr, ptr %pages, i64 %number
  %page = load ptr, ptr %page.at
  %layer = getelementptr i8, ptr %page, i64 %offset
  %scales = getelementptr i8, ptr %layer, i64 %codes.bytes
  %head.codes = mul i64 %head, %head.bytes
  %codes = getelementptr i8, ptr %layer, i64 %head.codes
  %head.scales = mul i64 %head, {PAGE}
  %head.scale = getelementptr float, ptr %scales, i64 %head.scales
  %page.first = mul i64 %number, {PAGE}
  %valid = sub i64 %length, %page.first
  %head.rows = mul i64 %head, %capacity
  %row.index = add i64 %head.rows, %page.first
  %out.index = mul i64 %row.index, %head_dim
  %y = getelementptr float, ptr %out, i64 %out.index
  br label %token
token:
  %t = phi i64 [ 0, %begin ], [ %t.next, %token.done ]
  %counts = icmp slt i64 %t, %valid
  %scale.at = getelementptr float, ptr %head.scale, i64 %t
  %scale = load float, ptr %scale.at, align 4
  %scales.16 = call <16 x float> @splat(float %scale)
  %t.codes = mul i64 %t, %head_dim
  br label %block
block:
  %i = phi i64 [ 0, %token ], [ %i.next, %block ]
  %mask = call <16 x i1> @before(i64 %i, i64 %head_dim)
  %index = add i64 %t.codes, %i
  %code.at = getelementptr i8, ptr %codes, i64 %index
  %code = load <16 x i8>, ptr %code.at, align 1
  %wide = sitofp <16 x i8> %code to <16 x float>
  %product = fmul <16 x float> %wide, %scales.16
  %value = select i1 %counts, <16 x float> %product, <16 x float> zeroinitializer
  %y.at = getelementptr float, ptr %y, i64 %index
  call void @llvm.masked.store.v16f32.p0(<16 x float> %value, ptr %y.at, i32 4, <16 x i1> %mask)
  %i.next = add i64 %i, 16
  %more = icmp slt i64 %i.next, %head_dim
  br i1 %more, label %block, label %token.done
token.done:
  %t.next = add i64 %t, 1
  %t.more = icmp slt i64 %t.next, {PAGE}
  br i1 %t.more, label %token, label %item.done
item.done:
  %item.next = add i64 %item, 1
  br label %items.test
done:
  ret void
}}
"""
)
