"""The sandbox renders what jinja2 renders, and stops whatever a hostile template tries."""

# ruff: noqa: E501  (a template a line)

from __future__ import annotations

import json
import time
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2.sandbox import ImmutableSandboxedEnvironment

from engine.errors import ChatTemplateError
from engine.templates.template_budget import Budget, TemplateLimitError
from engine.templates.template_sandbox import MAX_SOURCE_CHARS, SandboxedTemplate

MESSAGES = [
    {"role": "system", "content": "be <kind> & é"},
    {"role": "user", "content": " hi there\n"},
    {"role": "assistant", "content": "hello"},
    {"role": "user", "content": "hello\n\nagain 你好"},
]
VARIABLES = {
    "messages": MESSAGES,
    "tools": None,
    "add_generation_prompt": True,
    "bos_token": "<s>",
    "n": 2,
    "f": 1.5,
    "s": "a",
}


def render(source: str, variables=VARIABLES) -> str:
    return SandboxedTemplate(source).render(variables, Budget())


def plain_render(source: str) -> str:
    """jinja2's own sandbox, set up as transformers sets it up for chat templates."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = lambda value, indent=None: json.dumps(
        value, ensure_ascii=False, indent=indent
    )
    return environment.from_string(source).render(VARIABLES)


FEATURES = [
    "{{ messages|selectattr('role','equalto','user')|map(attribute='content')|join(', ') }}",
    "{% if messages|selectattr('role','equalto','nobody') %}a lazy result is true{% endif %}",
    "{{ messages|tojson }}|{{ messages|tojson(indent=2) }}|{{ {'a':'<b>&é'}|tojson }}",
    "{% for m in messages if m.role != 'system' %}{{ loop.index }}/{{ loop.length }}{{ m.content[:3] }}{% endfor %}",
    "{% for m in messages[::-1] %}{{ m.role }}{% if loop.index0 == 1 %}{% break %}{% endif %}{% endfor %}",
    "{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}{{ loop.previtem.role }}{% endfor %}",
    "{% set ns = namespace(i=0, l=[]) %}{% for m in messages %}{% set ns.l = ns.l + [m.role] %}"
    "{% set ns.i = ns.i + 1 %}{% endfor %}{{ ns.i }}{{ ns.l }}",
    "{% macro r(x, y=2) %}[{{ x }}{{ y }}{{ varargs }}{{ kwargs }}]{% endmacro %}{{ r(1) }}{{ r(1, 2, 3, z=4) }}",
    "{% macro t(n) %}{{ n }}{% if n > 0 %}{{ t(n - 1) }}{% endif %}{% endmacro %}{{ t(12) }}",
    "{% macro m() %}<{{ caller() }}>{% endmacro %}{% call m() %}x{% endcall %}",
    "{% set x %}  a {{ 1 + 1 }}\n b{% endset %}{{ x|trim }}|{{ x|upper }}",
    "{{ 'a-b-c'.split('-')[-1] }}{{ 'x'.join(['a','b']) }}{{ '%s-%d' % ('a', 3) }}{{ '{}:{:>4}'.format('a', 7) }}",
    "{{ messages[0].get('content') }}{{ messages[0].items()|list }}{{ 'role' in messages[0] }}{{ messages[0].nope }}",
    "{{ tools is none }}{{ foo is defined }}{{ foo }}{{ none }}{{ 7 // 2 }}{{ 7 / 2 }}{{ 2 ** 10 }}{{ -3 % 5 }}",
    "{{ [1,2,3]|sum }}{{ [[1],[2]]|sum(start=[]) }}{{ [3,1,2]|sort }}{{ [1,1,2]|unique|list }}{{ 'a b'|wordcount }}",
    "{{ [1,2,3,4,5]|batch(2, 'x')|list }}{{ [1,2,3]|slice(2)|list }}{{ 3.7|round }}{{ 3.14159|round(2) }}",
    "{{ '3'|int + 1 }}{{ [1,2]|first }}{{ [1,2]|last }}{{ [1,2]|length }}{{ 'abc'|reverse }}{{ 'abc'|list }}",
    "{{ 'x'|default('y') }}{{ u|default('y') }}{{ ''|default('z', true) }}{{ -1|abs }}{{ '1.5'|float }}{{ 5|string }}",
    "{{ 'a\nb\n\nc'|indent(2) }}|{{ 'a\nb'|indent(2, true) }}|{{ 'hello world'|title }}|{{ 'hello'|capitalize }}",
    "{{ 'abcabc'|replace('b','X') }}{{ 'aaa'.replace('a','b',2) }}{{ 'a'|center(5) }}{{ 'a'.ljust(3) }}|{{ '7'.zfill(3) }}",
    "{{ {'b':1,'a':2}|dictsort }}{{ {'b':1}|items|list }}"
    "{% for g in [{'k':1},{'k':2}]|groupby('k') %}{{ g.grouper }}{{ g.list }}{% endfor %}",
    "{% for x in [1,[2,[3]]] recursive %}{% if x is iterable %}({{ loop(x) }}){% else %}{{ x }}@{{ loop.depth }}"
    "{% endif %}{% endfor %}",
    "{% for i in range(3) %}{{ loop.cycle('x','y') }}{{ loop.changed(i) }}{{ loop.revindex }}{{ loop.nextitem }}"
    "{% else %}none{% endfor %}",
    "  {%- if true %}\n  a\n  {% endif %}\n{# c #}\nb\n  {%- set z = 1 -%}  \n c",
    "{{ 'a' ~ 1 ~ none ~ [1] }}{{ not true or false and true }}{{ 1 < 2 <= 2 }}{{ 'a' if false }}",
    "{% filter upper %}abc{{ 1 }}{% endfilter %}{% with a=1 %}{{ a }}{% endwith %}{% raw %}{{ x }}{% endraw %}",
    "{{ dict(a=1, **{'b': 2}) }}{{ messages|rejectattr('role','equalto','user')|list|length }}{{ [0,1]|reject|list }}",
    "{{ [1,2,3]|select('odd')|list }}{{ ['a']|map('upper')|list }}{{ [1,2]|max }}{{ [1,2]|min }}{{ '<a>'|e }}",
    "{{ 'a b'|urlencode }}{{ 'long text here'|truncate(8) }}{{ (1,2) + (3,) }}{{ [1] * 2 + [3] }}{{ 'x' * 3 }}",
    "{% block q %}B{{ 1 }}{% endblock %}{{ self.q() }}",
    "{{ messages is sequence }}{{ messages[0] is mapping }}{{ 'a' is string }}{{ 3 is divisibleby 3 }}{{ 1 is in [1] }}",
    "{% set a, b = (1, 2) %}{{ a }}{{ b }}{% for k, v in messages[0].items() %}{{ k }}={{ v }};{% endfor %}",
    "{%- for m in messages -%}\n{{ m.role }}: {{ m.content }}\n\n{%- endfor -%}\n",
    "{{ '__class__' in 'x' }}{{ cycler('a','b').next() }}{% set j = joiner(',') %}{{ j() }}{{ j() }}",
]  # fmt: skip


@pytest.mark.parametrize("source", FEATURES)
def test_renders_what_jinja2_renders(source):
    assert render(source) == plain_render(source)


EXPRESSIONS = st.recursive(
    st.sampled_from(["messages", "messages[1].content", "s", "n", "tools", "u", "[n, s]", "{'k': s}", "f"]),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "*", "%", "~", "==", "in", "and", "or", "-"]), inner).map(
            lambda parts: f"({parts[0]} {parts[1]} {parts[2]})"
        ),
        st.tuples(
            inner, st.sampled_from(["length", "string", "upper", "list", "tojson", "first", "join('-')", "trim"])
        ).map(lambda parts: f"({parts[0]})|{parts[1]}"),
        inner.map(lambda part: f"[{part}, ({part},)]"),
        inner.map(lambda part: f"({part})[1:]"),
    ),
    max_leaves=5,
)  # fmt: skip


@given(EXPRESSIONS)
def test_any_expression_gives_what_jinja2_gives_or_fails_where_jinja2_fails(expression):
    source = "{% for x in [1, 2] %}{{ " + expression + " }}{% endfor %}"
    try:
        expected = plain_render(source)
    except Exception:  # noqa: BLE001  (whatever it is, ours must fail too)
        with pytest.raises(ChatTemplateError):
            render(source)
    else:
        assert render(source) == expected


def test_generation_tag_marks_nothing_but_a_scope():
    assert render("a{% generation %}{% set q = 1 %}b{% endgeneration %}{{ q is defined }}") == "abFalse"


def test_time_is_local_and_formatted():
    before = datetime.now().strftime("%d %b %Y")
    assert render("{{ strftime_now('%d %b %Y') }}") in (before, datetime.now().strftime("%d %b %Y"))


def test_the_templates_own_words_are_kept_on_one_line():
    with pytest.raises(ChatTemplateError, match=r"refuses these messages: Roles must\s?alternate! Twice\."):
        render("{{ raise_exception('Roles must alternate!\n\x1b Twice.') }}")


def test_long_words_are_cut():
    with pytest.raises(ChatTemplateError) as caught:
        render("{{ raise_exception('no ' * 10000) }}")
    assert len(caught.value.message) < 400


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ foo.bar }}", "'foo' is undefined"),
        ("{{ messages[0] + 1 }}", "unsupported operand"),
        ("{{ none() }}", "not callable"),
        ("{% if %}", "line 1"),
        ("\n\n{% for %}", "line 3"),
        ("{{ x | nonsense }}", "nonsense"),
        ("{{ " + "9" * 5000 + " }}", "can't be read"),
        ("{% for i in range(2) %}" * 30 + "{% endfor %}" * 30, "nested"),
        ("{{ " + "(" * 40_000 + "1" + ")" * 40_000 + " }}", "can't be read"),
        ("{{ " + "not " * 20_000 + "1 }}", "can't be read"),
        ("{{ " + "1 + " * 9000 + "1 }}", "can't be read"),
        ("{% if 1 %}" * 4000 + "{% endif %}" * 4000, "can't be read"),
        ("x" * (MAX_SOURCE_CHARS + 1), "100,001 characters"),
        ("{{ [" + "1," * 21_000 + "] }}", "too complex"),
        ("{% include 'x' %}", "include"),
        ("{% import 'x' as x %}", "import"),
        ("{% from 'x' import y %}", "from"),
        ("{% extends 'x' %}", "extends"),
        ("{% autoescape true %}{% endautoescape %}", "autoescape"),
    ],
    ids=lambda value: value[:30],
)  # fmt: skip
def test_a_broken_template_gives_one_sentence_with_the_reason(source, reason):
    with pytest.raises(ChatTemplateError) as caught:
        render(source)
    assert reason in caught.value.message
    assert "\n" not in caught.value.message
    assert "Traceback" not in caught.value.message


HOSTILE = {
    "endless range": "{% for i in range(1000000000) %}x{% endfor %}",
    "nested loops": "{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}{% endfor %}",
    "deep loops": "{% for i in range(100) %}" * 15 + "x" + "{% endfor %}" * 15,
    "filtered loop": "{% for i in range(90000) if i < 0 %}{% endfor %}" * 30,
    "recursive macro": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "branching macro": "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(30) }}",
    "branching caller": "{% macro m() %}{{ caller() }}{{ caller() }}{% endmacro %}"
    + "{% call m() %}" * 18 + "x" + "{% endcall %}" * 18,
    "recursive loop": "{% for x in [[1]] recursive %}{{ loop([x]) }}{% endfor %}",
    "wide recursive loop": "{% for x in range(999) recursive %}{% if loop.depth < 5 %}{{ loop(range(999)) }}{% endif %}"
    "{% endfor %}",
    "recursive block": "{% block a %}{{ self.a() }}{% endblock %}",
    "doubling by ~": "{% set ns = namespace(s='x') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
    "doubling by +": "{% set ns = namespace(s='x') %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
    "doubling lists": "{% set ns = namespace(s=[1]) %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
    "squaring": "{% set ns = namespace(s=3) %}{% for i in range(99) %}{% set ns.s = ns.s * ns.s %}{% endfor %}",
    "shared lists": "{% set ns = namespace(s=['x']) %}{% for i in range(39) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}"
    "{{ ns.s }}",
    "shared dicts": "{% set ns = namespace(s='x') %}{% for i in range(30) %}{% set ns.s = {'a': ns.s, 'b': ns.s} %}"
    "{% endfor %}{{ ns.s|tojson }}",
    "shared by dict()": "{% set ns = namespace(s='x') %}{% for i in range(30) %}{% set ns.s = dict(a=ns.s, b=ns.s) %}"
    "{% endfor %}",
    "shared varargs": "{% macro f(n) %}{% if n %}{{ f(n-1, varargs, varargs) }}{% else %}{{ varargs }}{% endif %}"
    "{% endmacro %}{{ f(35, 1) }}",
    "shared keywords": "{% macro f(n) %}{% if n %}{{ f(n-1, a=kwargs, b=kwargs) }}{% else %}{{ kwargs }}{% endif %}"
    "{% endmacro %}{{ f(35, a=1) }}",
    "comparing shared lists": "{% set n = namespace(s=['x'], t=['x']) %}{% for i in range(30) %}"
    "{% set n.s = [n.s, n.s] %}{% set n.t = [n.t, n.t] %}{% endfor %}{{ n.s == n.t }}",
    "deep list": "{% set ns = namespace(s=[]) %}{% for i in range(90000) %}{% set ns.s = [ns.s] %}{% endfor %}",
    "text times number": "{{ 'x' * 1000000000000 }}",
    "number times text": "{{ 1000000000 * 'x' }}",
    "list times number": "{{ [1] * 1000000000 }}",
    "huge power": "{{ 7 ** 99999999 }}",
    "wide %d": "{{ '%1000000000d' % 1 }}",
    "wide %*d": "{{ '%*d' % (1000000000, 1) }}",
    "precise %f": "{{ '%.1000000000f' % 1.0 }}",
    "many %s": "{% set s = 'x' * 1000000 %}{{ ('%s' * 50000) % ((s,) * 50000) }}",
    "many %(a)s": "{% set s = 'x' * 1000000 %}{{ ('%(a)s' * 50000) % {'a': s} }}",
    "wide format filter": "{{ '%1000000000s'|format('x') }}",
    "wide str.format": "{{ '{:1000000000}'.format(1) }}",
    "nested str.format": "{{ '{:{}}'.format(1, 1000000000) }}",
    "str.format by reference": "{% set f = '{:1000000000}'.format %}{{ f(1) }}",
    "str.format by subscript": "{{ '{:1000000000}'['format'](1) }}",
    "many str.format": "{% set s = 'x' * 1000000 %}{{ ('{0}' * 50000).format(s) }}",
    "wide center": "{{ 'x'|center(1000000000) }}",
    "wide center block": "{% filter center(1000000000) %}x{% endfilter %}",
    "wide method": "{% set c = 'x'.center %}{{ c(1000000000) }}",
    "wide zfill": "{{ '1'.zfill(10000000000) }}",
    "wide indent": "{{ 'a\nb'|indent(1000000000) }}",
    "many indents": "{{ ('a\n' * 600000)|indent(900) }}",
    "join": "{{ range(90000)|join('x' * 100000) }}",
    "join method": "{{ ('x' * 100000).join(['a'] * 50000) }}",
    "replace": "{{ ('a' * 100000)|replace('a', 'b' * 100000) }}",
    "replace nothing": "{{ ('a' * 1000000).replace('', 'b' * 100000) }}",
    "batch": "{{ [1]|batch(1000000000, 'x')|list }}",
    "slice": "{{ [1]|slice(1000000000)|list }}",
    "round": "{{ 1.5|round(1000000000, 'ceil') }}",
    "json indent": "{{ [1, 2]|tojson(indent=1000000000) }}",
    "json separators": "{{ range(9000)|list|tojson(separators=('x' * 1000000, 'y')) }}",
    "strip": "{{ ('b' * 1000000).strip('a' * 1000000 ~ 'b') }}",
    "trim": "{{ ('b' * 1000000)|trim('a' * 1000000 ~ 'b') }}",
    "reverse search": "{{ ('a' * 2000000).rfind('b' ~ 'a' * 1000000) }}",
    "reverse split": "{{ ('a' * 2000000).rsplit(sep='b' ~ 'a' * 1000000) }}",
    "long sums": "{{ ([[1]] * 90000)|sum(start=[])|length }}",
    "repeated sort": "{% for i in range(90000) %}{% set x = range(50000)|sort(reverse=true) %}{% endfor %}",
    "repeated search": "{% for i in range(90000) %}{{ ('a' * 50000 ~ 'b') in ('a' * 190000) }}{% endfor %}",
    "repeated slice": "{% set s = 'x' * 1900000 %}{% for i in range(90000) %}{% set y = s[::-1] %}{% endfor %}",
    "letters": "{% set s = 'x' * 1900000 %}{% for i in range(999) %}{% for c in s %}{% endfor %}{% endfor %}",
    "keep everything": "{% set ns = namespace(a=[]) %}{% for i in range(90000) %}{% set ns.a = ns.a + ['x' * 100000] %}"
    "{% endfor %}",
    "print a list again": "{% set s = ['a' * 1900000] %}{% set x %}" + "{{ s }}" * 5000 + "{% endset %}",
    "~ a list again": "{% set s = ['a' * 1900000] %}{% set x = " + "s ~ " * 5000 + "'' %}",
    "plain text in a loop": "{% for i in range(90000) %}" + "y" * 90_000 + "{% endfor %}",
    "plain text in a macro": "{% macro m() %}{% for i in range(90000) %}" + "y" * 90_000
    + "{% endfor %}{% endmacro %}{{ m() }}",
    "many small pieces": "{% set x %}{% for i in range(90000) %}" + "{% if 1 %}a{% endif %}" * 4000
    + "{% endfor %}{% endset %}",
    "long attribute": "{{ (['a'] * 50000)|sort(attribute='0.' * 50000 ~ '0') }}",
    "empty lists": "{% set ns = namespace() %}{% for i in range(90000) %}{% set ns.x = [[], [], [], []] %}{% endfor %}",
    "time format": "{{ strftime_now('%Y' * 1000000) }}",
    "lorem ipsum": "{{ lipsum(1000000) }}",
    "expandtabs": "{{ '\t'.expandtabs(1000000000) }}",
    "translate": "{{ ('a' * 1000000).translate({97: 'b' * 1000000}) }}",
    "format_map": "{{ '{a:1000000000}'.format_map({'a': 1}) }}",
    "to_bytes": "{{ (5).to_bytes(1000000000, 'big') }}",
    "int of base 2": "{{ ('1' * 1900000)|int(0, 2) }}",
}  # fmt: skip


@pytest.mark.parametrize("source", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_template_is_stopped_soon(source):
    # The processor's time of this thread: what other programs do does not count.
    began = time.thread_time()
    with pytest.raises(ChatTemplateError) as caught:
        render(source)
    assert time.thread_time() - began < 2.5
    assert "\n" not in caught.value.message


def test_lazy_filters_can_not_be_stacked_into_a_crash():
    source = (
        "{% set ns = namespace(g=['a']) %}"
        "{% for i in range(50000) %}{% set ns.g = ns.g|map('upper') %}{% endfor %}{{ ns.g|list }}"
    )
    assert render(source) == "['A']"


def test_a_namespace_in_itself_prints_without_end():
    assert render("{% set ns = namespace() %}{% set ns.a = ns %}{{ [ns] }}") == "[<Namespace>]"


@pytest.mark.parametrize(
    "expression",
    [
        "''.__class__.__mro__",
        "''['__class__']['__mro__']",
        "'{0.__class__.__mro__}'.format('').x.y",
        "(['']|map(attribute='__class__')|first).mro()",
        "raise_exception.__globals__.x",
        "cycler.__init__.__globals__.os",
        "range.__self__.x",
        "self._TemplateReference__context.x",
        "namespace.__init__.__globals__.x",
        "dict.mro()",
        "dict.fromkeys([1]).x",
        "messages.append(1)",
        "messages[0].update({'a': 1})",
        "messages[0].pop('role')",
        "messages[0].setdefault('a', 1)",
        "messages.sort()",
        "'x'.encode()",
        "''|attr('__class__')",
        "[1]|random",
        "messages|pprint",
        "strftime_now.__wrapped__()",
        "(1).real.x",
        "{}.__init__()",
    ],
)
def test_nothing_of_python_is_in_reach(expression):
    before = json.dumps(MESSAGES)
    with pytest.raises(ChatTemplateError):
        render("{{ " + expression + " }}")
    assert json.dumps(MESSAGES) == before


def test_a_namespace_refuses_names_of_pythons_own():
    with pytest.raises(ChatTemplateError, match="underscore"):
        render("{% set ns = namespace() %}{% set ns.__class__ = 1 %}")


def test_two_renderings_of_one_template_share_nothing():
    template = SandboxedTemplate(
        "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}"
    )
    assert [template.render(VARIABLES, Budget()) for _ in range(2)] == ["4", "4"]


def test_a_template_works_again_after_it_was_stopped():
    template = SandboxedTemplate("{% for i in range(n) %}{% for j in range(n) %}{% endfor %}{% endfor %}ok")
    with pytest.raises(TemplateLimitError):
        template.render({"n": 90_000}, Budget())
    assert template.render({"n": 3}, Budget()) == "ok"


def test_renderings_that_share_a_budget_share_its_limit():
    template = SandboxedTemplate("{% for i in range(60) %}{% endfor %}")
    budget = Budget(steps=100)
    template.render({}, budget)
    with pytest.raises(TemplateLimitError, match="too many steps"):
        template.render({}, budget)


def test_time_is_limited_whatever_the_steps():
    with pytest.raises(TemplateLimitError, match=r"more than 0 seconds"):
        SandboxedTemplate("{% for i in range(9) %}{% endfor %}").render({}, Budget(seconds=0))


def test_a_long_chat_is_far_from_every_limit():
    messages = [{"role": "user", "content": f"{i} " + "word " * 400} for i in range(2000)]
    source = (
        "{% set ns = namespace(all=[]) %}{% for m in messages %}"
        "{% if loop.index0 % 2 == 0 and m.content is string %}{{ '<|' ~ m.role ~ '|>' ~ m.content|trim + '\n' }}"
        "{% else %}{{ m['content'].split('word')[0] }}{% endif %}{% endfor %}{{ messages[1:]|length }}"
    )
    budget = Budget(input_chars=sum(len(message["content"]) for message in messages))
    text = SandboxedTemplate(source).render({"messages": messages}, budget)
    assert text.count("<|user|>") == 1000
    assert text.endswith("1999")


def test_a_list_that_grows_with_every_message_is_within_the_limits():
    messages = [{"role": "user", "content": "x"}] * 1500
    source = (
        "{% set ns = namespace(kept=[]) %}{% for m in messages %}{% set ns.kept = ns.kept + [m] %}{% endfor %}"
        "{{ ns.kept|length }}"
    )
    assert SandboxedTemplate(source).render({"messages": messages}, Budget(input_chars=1500)) == "1500"
