"""Prints the table of all primitives with their rules: `python -m alpaviz.program.rules.table > FILE`."""

from __future__ import annotations

import inspect

from alpaviz.program.rules import list_rule_families

HEADER = """# Sharding rules

Written by `python -m alpaviz.program.rules.table`. A rule is written like an einsum: a term for each operand and
result, a factor for each dimension; `1` is a dimension that nothing may split, `(a b)` one made of two factors. A
factor that no result has is summed over. Calls (`jit`, `remat`, `custom_jvp_call`, `custom_vjp_call`) are looked into,
and a `scan` over stacked layers is written out. Anything else is planned whole, with a warning, until
`alpaviz.register_sharding_rule` gives it a rule.

| primitives | rule |
|---|---|
"""


def format_table() -> str:
    """The table in Markdown."""
    rows = []
    for maker, primitives in list_rule_families():
        text = " ".join((inspect.getdoc(maker) or "").split("\n\n")[0].split("Source:")[0].split())
        rows.append(f"| {', '.join(f'`{name}`' for name in primitives)} | {text} |\n")
    return HEADER + "".join(rows)


if __name__ == "__main__":
    print(format_table(), end="")
