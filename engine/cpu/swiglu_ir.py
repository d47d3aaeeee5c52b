"""The kernel of `swiglu.py` as LLVM IR."""

from __future__ import annotations

from engine.cpu.vector_ir import COMMON, ENTRY, Fields, load_fields, share, splat_of

SWIGLU: Fields = (("x", "ptr"), ("out", "ptr"), ("size", "i64"))
"""Items: rows. x (rows, 2 size) -> out (rows, size)."""


def kernel_text() -> str:
    return COMMON + _TEXT + share("swiglu")


_TEXT = (
    "define void @swiglu"
    + ENTRY
    + load_fields(SWIGLU)
    + f"""
  %both = shl i64 %size, 1
  br label %rows
rows:
  %row = phi i64 [ %start, %entry ], [ %row.next, %row.done ]
  %row.more = icmp slt i64 %row, %stop
  br i1 %row.more, label %row.begin, label %done
row.begin:
  %x.index = mul i64 %row, %both
  %gate = getelementptr float, ptr %x, i64 %x.index
  %up = getelementptr float, ptr %gate, i64 %size
  %out.index = mul i64 %row, %size
  %y = getelementptr float, ptr %out, i64 %out.index
  br label %loop
loop:
  %i = phi i64 [ 0, %row.begin ], [ %i.next, %loop ]
  %mask = call <16 x i1> @before(i64 %i, i64 %size)
  %gate.at = getelementptr float, ptr %gate, i64 %i
  %up.at = getelementptr float, ptr %up, i64 %i
  %y.at = getelementptr float, ptr %y, i64 %i
  %g = call <16 x float> @llvm.masked.load.v16f32.p0(ptr %gate.at, i32 4, <16 x i1> %mask, <16 x float> zeroinitializer)
  %u = call <16 x float> @llvm.masked.load.v16f32.p0(ptr %up.at, i32 4, <16 x i1> %mask, <16 x float> zeroinitializer)
  %minus = fneg <16 x float> %g
  %e = call <16 x float> @exponential(<16 x float> %minus)
  %below = fadd <16 x float> %e, {splat_of(1.0)}
  %silu = fdiv <16 x float> %g, %below
  %product = fmul <16 x float> %silu, %u
  call void @llvm.masked.store.v16f32.p0(<16 x float> %product, ptr %y.at, i32 4, <16 x i1> %mask)
  %i.next = add i64 %i, 16
  %more = icmp slt i64 %i.next, %size
  br i1 %more, label %loop, label %row.done
row.done:
  %row.next = add i64 %row, 1
  br label %rows
done:
  ret void
}}
"""
)
