"""Attention of one query right over the numbers of pages, as LLVM IR: each page's share, and all joined."""

from __future__ import annotations

from engine.cpu.vector_ir import ENTRY, Fields, load_fields, splat_of
from engine.kv_geometry import PAGE, KvFormat

HEADS_AT_ONCE = 4  # query heads that share what is loaded of their key head

_QUARTERS = range(PAGE // 16)  # of a page's tokens

PARTIAL_HEAD = 16
"""Floats before a partial sum: the largest score of a page, the sum of its weights, then its part in all."""

ATTEND: Fields = (
    ("pages", "ptr"),  # addresses of the pages, from the first one that is looked at
    ("offset", "i64"),
    ("num_pages", "i64"),
    ("first", "i64"),  # the first token of the first page that is looked at
    ("end", "i64"),  # behind the last token of the last page
    ("q", "ptr"),  # (A, 16 blocks) float32, zeros behind D
    ("partials", "ptr"),  # (pages, A, PARTIAL_HEAD + 16 blocks) float32
    ("out", "ptr"),  # (A, 16 blocks) float32
    ("kv_heads", "i64"),
    ("group", "i64"),  # query heads of a key head
    ("head_dim", "i64"),
    ("blocks", "i64"),  # of 16 features
    ("scale", "double"),
)
"""Items of `attend`: key heads of pages, the heads of a page side by side. Items of `join`: query heads."""


def attend_text(kv_format: KvFormat) -> str:
    """One query's scores over the keys of a page, and the sum of values weighted by them."""
    number, number_bytes = {"int8": ("i8", 1), "native": ("float", 4)}[kv_format]
    parts = _weigh(kv_format) + "".join(
        _attend_heads(kv_format, count) for count in range(1, HEADS_AT_ONCE + 1)
    )
    calls = "".join(
        f"heads{count}:\n  call void @attend_heads{count}(ptr %k, ptr %v, ptr %ks, ptr %vs, ptr %query, ptr %sum,"
        " i64 %head_dim, i64 %blocks, i64 %from, i64 %to, float %scale32)\n  br label %heads.next\n"
        for count in range(1, HEADS_AT_ONCE + 1)
    )
    cases = " ".join(f"i64 {count}, label %heads{count}" for count in range(1, HEADS_AT_ONCE))
    return (
        parts
        + "define void @attend"
        + ENTRY
        + load_fields(ATTEND)
        + f"""
  %scale32 = fptrunc double %scale to float
  %head.size = mul i64 %head_dim, {PAGE}
  %kv.size = mul i64 %head.size, %kv_heads
  %layer.size = shl i64 %kv.size, 1
  %layer.codes = mul i64 %layer.size, {number_bytes}
  %width = shl i64 %blocks, 4
  %partial.width = add i64 %width, {PARTIAL_HEAD}
  %num_heads = mul i64 %kv_heads, %group
  %last = sub i64 %num_pages, 1
  br label %items.test
items.test:
  %item = phi i64 [ %start, %entry ], [ %item.next, %item.done ]
  %item.more = icmp slt i64 %item, %stop
  br i1 %item.more, label %begin, label %done
begin:
  %number = sdiv i64 %item, %kv_heads
  %head = srem i64 %item, %kv_heads
  %page.at = getelementptr ptr, ptr %pages, i64 %number
  %page = load ptr, ptr %page.at
  %layer = getelementptr i8, ptr %page, i64 %offset
  %k.index = mul i64 %head, %head.size
  %v.index = add i64 %k.index, %kv.size
  %k = getelementptr {number}, ptr %layer, i64 %k.index
  %v = getelementptr {number}, ptr %layer, i64 %v.index
  %scales = getelementptr i8, ptr %layer, i64 %layer.codes
  %ks.index = mul i64 %head, {PAGE}
  %v.head = add i64 %head, %kv_heads
  %vs.index = mul i64 %v.head, {PAGE}
  %ks = getelementptr float, ptr %scales, i64 %ks.index
  %vs = getelementptr float, ptr %scales, i64 %vs.index
  %is.first = icmp eq i64 %number, 0
  %is.last = icmp eq i64 %number, %last
  %from = select i1 %is.first, i64 %first, i64 0
  %to = select i1 %is.last, i64 %end, i64 {PAGE}
  %query.first = mul i64 %head, %group
  %page.sums = mul i64 %number, %num_heads
  br label %heads.test
heads.test:
  %h = phi i64 [ 0, %begin ], [ %h.next, %heads.next ]
  %left = sub i64 %group, %h
  %some = icmp sgt i64 %left, 0
  br i1 %some, label %heads, label %item.done
heads:
  %a = add i64 %query.first, %h
  %query.index = mul i64 %a, %width
  %query = getelementptr float, ptr %q, i64 %query.index
  %sum.number = add i64 %page.sums, %a
  %sum.index = mul i64 %sum.number, %partial.width
  %sum = getelementptr float, ptr %partials, i64 %sum.index
  switch i64 %left, label %heads{HEADS_AT_ONCE} [ {cases} ]
{calls}heads.next:
  %h.next = add i64 %h, {HEADS_AT_ONCE}
  br label %heads.test
item.done:
  %item.next = add i64 %item, 1
  br label %items.test
done:
  ret void
}}
"""
    )


def _load_numbers(kv_format: KvFormat, name: str, pointer: str, index: str) -> str:
    if kv_format == "native":
        return f"""
  %{name}.at = getelementptr float, ptr {pointer}, i64 {index}
  %{name} = load <16 x float>, ptr %{name}.at, align 4
"""
    return f"""
  %{name}.at = getelementptr i8, ptr {pointer}, i64 {index}
  %{name}.codes = load <16 x i8>, ptr %{name}.at, align 1
  %{name} = sitofp <16 x i8> %{name}.codes to <16 x float>
"""


def _attend_heads(kv_format: KvFormat, count: int) -> str:
    """`count` query heads of one key head over tokens from .. to - 1 of a page. `query` and `sum` are the first
    head's; the others lie behind it.
    """
    scaled = kv_format == "int8"
    heads = range(count)

    def each(template: str) -> str:
        return "".join(template.replace("@r", str(head)) for head in heads)

    fill = "".join(
        f"  %fill{r}.{i} = getelementptr float, ptr %scores, i64 {r * PAGE + 16 * i}\n"
        f"  store <16 x float> {splat_of(float('-inf'))}, ptr %fill{r}.{i}, align 64\n"
        for r in heads
        for i in _QUARTERS
    )
    return (
        f"define internal void @attend_heads{count}(ptr %k, ptr %v, ptr %ks, ptr %vs, ptr %query,"
        " ptr %sum, i64 %head_dim, i64 %blocks, i64 %from, i64 %to, float %scale) {\nentry:\n"
        f"  %scores = alloca [{count * PAGE} x float], align 64\n"
        "  %width = shl i64 %blocks, 4\n"
        f"  %sum.width = add i64 %width, {PARTIAL_HEAD}\n"
        + each(
            "  %q.index@r = mul i64 %width, @r\n  %q@r = getelementptr float, ptr %query, i64 %q.index@r\n"
        )
        + each(
            "  %o.index@r = mul i64 %sum.width, @r\n  %o@r = getelementptr float, ptr %sum, i64 %o.index@r\n"
        )
        + fill
        + """
  br label %token
token:
  %t = phi i64 [ %from, %entry ], [ %t.next, %token.done ]
  %t.row = mul i64 %t, %head_dim
  br label %dot
dot:
  %b = phi i64 [ 0, %token ], [ %b.next, %dot ]
"""
        + each("  %acc@r = phi <16 x float> [ zeroinitializer, %token ], [ %acc@r.next, %dot ]\n")
        + "  %x = shl i64 %b, 4\n  %key.index = add i64 %t.row, %x\n"
        + _load_numbers(kv_format, "key", "%k", "%key.index")
        + each("""
  %q@r.at = getelementptr float, ptr %q@r, i64 %x
  %q@r.x = load <16 x float>, ptr %q@r.at, align 4
  %acc@r.next = call <16 x float> @llvm.fmuladd.v16f32(<16 x float> %q@r.x, <16 x float> %key, <16 x float> %acc@r)
""")
        + """
  %b.next = add i64 %b, 1
  %b.more = icmp slt i64 %b.next, %blocks
  br i1 %b.more, label %dot, label %token.done
token.done:
"""
        + (
            "  %ks.at = getelementptr float, ptr %ks, i64 %t\n  %ks.t = load float, ptr %ks.at, align 4\n"
            "  %factor = fmul float %ks.t, %scale\n"
            if scaled
            else "  %factor = fadd float %scale, 0.0\n"
        )
        + each(f"""
  %dot@r = call float @sum(<16 x float> %acc@r.next)
  %score@r = fmul float %dot@r, %factor
  %score.base@r = getelementptr [{PAGE} x float], ptr %scores, i64 @r
  %score.at@r = getelementptr float, ptr %score.base@r, i64 %t
  store float %score@r, ptr %score.at@r, align 4
""")
        + """
  %t.next = add i64 %t, 1
  %t.more = icmp slt i64 %t.next, %to
  br i1 %t.more, label %token, label %weights
weights:
"""
        + each(f"""
  %weights@r = getelementptr [{PAGE} x float], ptr %scores, i64 @r
  call void @weigh(ptr %weights@r, ptr %vs, ptr %o@r)
""")
        + """
  br label %block
block:
  %c = phi i64 [ 0, %weights ], [ %c.next, %block.done ]
  %y = shl i64 %c, 4
  br label %value
value:
  %u = phi i64 [ %from, %block ], [ %u.next, %value ]
"""
        + each("  %out@r = phi <16 x float> [ zeroinitializer, %block ], [ %out@r.next, %value ]\n")
        + "  %u.row = mul i64 %u, %head_dim\n  %value.index = add i64 %u.row, %y\n"
        + _load_numbers(kv_format, "val", "%v", "%value.index")
        + each(f"""
  %w.base@r = getelementptr [{PAGE} x float], ptr %scores, i64 @r
  %w.at@r = getelementptr float, ptr %w.base@r, i64 %u
  %w@r = load float, ptr %w.at@r, align 4
  %w@r.16 = call <16 x float> @splat(float %w@r)
  %out@r.next = call <16 x float> @llvm.fmuladd.v16f32(<16 x float> %w@r.16, <16 x float> %val, <16 x float> %out@r)
""")
        + """
  %u.next = add i64 %u, 1
  %u.more = icmp slt i64 %u.next, %to
  br i1 %u.more, label %value, label %block.done
block.done:
"""
        + each(f"""
  %o.base@r = getelementptr float, ptr %o@r, i64 {PARTIAL_HEAD}
  %o.at@r = getelementptr float, ptr %o.base@r, i64 %y
  store <16 x float> %out@r.next, ptr %o.at@r, align 4
""")
        + """
  %c.next = add i64 %c, 1
  %c.more = icmp slt i64 %c.next, %blocks
  br i1 %c.more, label %block, label %done
done:
  ret void
}
"""
    )


def _weigh(kv_format: KvFormat) -> str:
    """Scores become weights, times the values' scales; their largest and the weights' sum go to the front of
    `sum`. A function that is called, for the time it takes to compile it.
    """
    lines = ["define internal void @weigh(ptr %scores, ptr %vs, ptr %sum) noinline {"]
    for i in _QUARTERS:
        lines += [
            f"  %s{i}.at = getelementptr float, ptr %scores, i64 {16 * i}",
            f"  %s{i} = load <16 x float>, ptr %s{i}.at, align 64",
        ]
    largest = "%s0"
    for i in _QUARTERS[1:]:
        lines.append(f"  %m{i} = call <16 x float> @larger(<16 x float> {largest}, <16 x float> %s{i})")
        largest = f"%m{i}"
    lines += [
        f"  %m = call float @largest(<16 x float> {largest})",
        "  %m.16 = call <16 x float> @splat(float %m)",
    ]
    total = "zeroinitializer"
    for i in _QUARTERS:
        lines += [
            f"  %d{i} = fsub <16 x float> %s{i}, %m.16",
            f"  %p{i} = call <16 x float> @exponential(<16 x float> %d{i})",
            f"  %l{i} = fadd <16 x float> {total}, %p{i}",
        ]
        total, weight = f"%l{i}", f"%p{i}"
        if kv_format == "int8":
            lines += [
                f"  %vs{i}.at = getelementptr float, ptr %vs, i64 {16 * i}",
                f"  %vs{i} = load <16 x float>, ptr %vs{i}.at, align 4",
                f"  %w{i} = fmul <16 x float> %p{i}, %vs{i}",
            ]
            weight = f"%w{i}"
        lines.append(f"  store <16 x float> {weight}, ptr %s{i}.at, align 64")
    lines += [
        f"  %l = call float @sum(<16 x float> {total})",
        "  store float %m, ptr %sum, align 4",
        "  %l.at = getelementptr float, ptr %sum, i64 1",
        "  store float %l, ptr %l.at, align 4",
        "  ret void",
        "}",
    ]
    return "\n".join(lines) + "\n"


# Shares are scaled from their own page's largest score to the largest of all.
JOIN_TEXT = (
    "define void @join"
    + ENTRY
    + load_fields(ATTEND)
    + f"""
  %width = shl i64 %blocks, 4
  %partial.width = add i64 %width, {PARTIAL_HEAD}
  %num_heads = mul i64 %kv_heads, %group
  %page.width = mul i64 %num_heads, %partial.width
  br label %items.test
items.test:
  %item = phi i64 [ %start, %entry ], [ %item.next, %item.done ]
  %item.more = icmp slt i64 %item, %stop
  br i1 %item.more, label %begin, label %done
begin:
  %base.index = mul i64 %item, %partial.width
  %base = getelementptr float, ptr %partials, i64 %base.index
  br label %peak
peak:
  %p = phi i64 [ 0, %begin ], [ %p.next, %peak ]
  %m = phi float [ 0xFFF0000000000000, %begin ], [ %m.next, %peak ]
  %p.index = mul i64 %p, %page.width
  %p.at = getelementptr float, ptr %base, i64 %p.index
  %p.m = load float, ptr %p.at, align 4
  %p.larger = fcmp ogt float %p.m, %m
  %m.next = select i1 %p.larger, float %p.m, float %m
  %p.next = add i64 %p, 1
  %p.more = icmp slt i64 %p.next, %num_pages
  br i1 %p.more, label %peak, label %parts
parts:
  %s = phi i64 [ 0, %peak ], [ %s.next, %parts ]
  %total = phi float [ 0.0, %peak ], [ %total.next, %parts ]
  %s.index = mul i64 %s, %page.width
  %s.at = getelementptr float, ptr %base, i64 %s.index
  %s.m = load float, ptr %s.at, align 4
  %s.sum.at = getelementptr float, ptr %s.at, i64 1
  %s.sum = load float, ptr %s.sum.at, align 4
  %s.part.at = getelementptr float, ptr %s.at, i64 2
  %s.less = fsub float %s.m, %m.next
  %s.less.16 = call <16 x float> @splat(float %s.less)
  %s.part.16 = call <16 x float> @exponential(<16 x float> %s.less.16)
  %s.part = extractelement <16 x float> %s.part.16, i32 0
  store float %s.part, ptr %s.part.at, align 4
  %s.share = fmul float %s.sum, %s.part
  %total.next = fadd float %total, %s.share
  %s.next = add i64 %s, 1
  %s.more = icmp slt i64 %s.next, %num_pages
  br i1 %s.more, label %parts, label %divide
divide:
  %inverse = fdiv float 1.0, %total.next
  %inverse.16 = call <16 x float> @splat(float %inverse)
  %out.index = mul i64 %item, %width
  %y = getelementptr float, ptr %out, i64 %out.index
  br label %block
block:
  %c = phi i64 [ 0, %divide ], [ %c.next, %block.done ]
  %x = shl i64 %c, 4
  br label %add
add:
  %u = phi i64 [ 0, %block ], [ %u.next, %add ]
  %acc = phi <16 x float> [ zeroinitializer, %block ], [ %acc.next, %add ]
  %u.index = mul i64 %u, %page.width
  %u.at = getelementptr float, ptr %base, i64 %u.index
  %u.part.at = getelementptr float, ptr %u.at, i64 2
  %u.part = load float, ptr %u.part.at, align 4
  %u.part.16 = call <16 x float> @splat(float %u.part)
  %u.sums = getelementptr float, ptr %u.at, i64 {PARTIAL_HEAD}
  %u.sum.at = getelementptr float, ptr %u.sums, i64 %x
  %u.sum = load <16 x float>, ptr %u.sum.at, align 4
  %acc.next = call <16 x float> @llvm.fmuladd.v16f32(<16 x float> %u.sum, <16 x float> %u.part.16, <16 x float> %acc)
  %u.next = add i64 %u, 1
  %u.more = icmp slt i64 %u.next, %num_pages
  br i1 %u.more, label %add, label %block.done
block.done:
  %result = fmul <16 x float> %acc.next, %inverse.16
  %y.at = getelementptr float, ptr %y, i64 %x
  store <16 x float> %result, ptr %y.at, align 4
  %c.next = add i64 %c, 1
  %c.more = icmp slt i64 %c.next, %blocks
  br i1 %c.more, label %block, label %item.done
item.done:
  %item.next = add i64 %item, 1
  br label %items.test
done:
  ret void
}}
"""
)
