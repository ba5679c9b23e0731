"""Sharding rules that users write: read back as written, and refused with what is wrong, where, and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import alpaviz.program.rules.table as table
from alpaviz.errors import ShardingRuleError
from alpaviz.program.rule import FactorKind, parse_rule
from alpaviz.program.rules import list_primitives, list_rule_families, register_sharding_rule


@pytest.mark.parametrize(
    ("text", "operands", "results", "message"),
    [
        ("a b", [(2, 3)], [(2, 3)], "write operands, '->', results"),
        ("a b -> a b -> a", [(2, 3)], [(2, 3)], "write operands, '->', results"),
        ("a b, b c -> a c", [(2, 3)], [(2, 4)], "has 2 operands, the op has 1"),
        ("a b -> a, b", [(2, 3)], [(2,)], "has 2 results, the op has 1"),
        ("a b -> a b", [(2, 3, 4)], [(2, 3)], "operand 0 has 2 dimensions in it, the array has 3"),
        ("a b -> a c", [(2, 3)], [(2, 5)], "factor 'c' of a result is in no operand"),
        ("a b, b c -> a c", [(2, 3), (4, 5)], [(2, 5)], "operand 1, dimension 0: b is 3, the array has 4"),
        ("a b -> b a", [(2, 3)], [(2, 3)], "result 0, dimension 0: b is 3, the array has 2"),
        ("(a b) -> a b", [(6,)], [(2, 3)], r"the sizes of \['a', 'b'\] cannot both be found"),
        ("a, (a b) -> a b", [(4,), (6,)], [(4, 2)], "dimension 0: 6 / 4 is not whole"),
        ("((a b) c) -> a", [(6,)], [(6,)], "cannot read"),
        ("a ? -> a", [(2, 3)], [(2,)], "cannot read '\\?'; a factor is a word"),
    ],
)  # fmt: skip
def test_a_mistake_is_explained(
    text: str, operands: list[tuple[int, ...]], results: list[tuple[int, ...]], message: str
) -> None:
    with pytest.raises(ShardingRuleError, match=message):
        parse_rule(text, operands, results)


def test_what_is_no_rule_or_no_primitive_is_refused_when_it_is_registered() -> None:
    before = list_primitives()
    with pytest.raises(ShardingRuleError, match="write operands, '->', results"):
        register_sharding_rule("test_never_registered", "a b")
    with pytest.raises(ShardingRuleError, match="takes a primitive or its name, not 3"):
        register_sharding_rule(3, "a -> a")
    with pytest.raises(ShardingRuleError, match="the rule must be text, not"):
        register_sharding_rule("test_never_registered", ("a", "a"))  # type: ignore[arg-type]
    assert list_primitives() == before


NAMES = ["a", "batch", "c_2", "d"]


@given(st.lists(st.lists(st.sampled_from(NAMES), unique=True, max_size=4), min_size=1, max_size=3), st.data())
def test_a_rule_reads_back_as_it_was_written(terms: list[list[str]], data: st.DataObject) -> None:
    sizes = dict(zip(NAMES, (2, 3, 5, 7), strict=True))
    used = sorted({name for term in terms for name in term})
    result = data.draw(st.lists(st.sampled_from(used), unique=True) if used else st.just([]))
    text = f"{', '.join(' '.join(term) or '·' for term in terms)} -> {' '.join(result) or '·'}"
    shapes = [tuple(sizes[name] for name in term) for term in terms]
    rule = parse_rule(text, shapes, [tuple(sizes[name] for name in result)])
    assert str(rule) == text
    for factor in rule.factors:
        assert factor.size == sizes[factor.name]
        assert (factor.kind is FactorKind.REDUCTION) == (factor.name not in result)


def test_the_table_of_primitives_is_what_the_registry_says() -> None:
    written = Path(table.__file__).with_name("PRIMITIVES.md").read_text()
    assert written == table.format_table(), "write PRIMITIVES.md anew with python -m alpaviz.program.rules.table"


def test_every_family_of_rules_says_what_it_does() -> None:
    for maker, primitives in list_rule_families():
        assert maker.__doc__, f"{primitives} have no description"
