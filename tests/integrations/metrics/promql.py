"""PromQL, as far as dashboards use it: which series an expression reads, and which labels it leaves."""

import promql_parser as promql

VARIABLES = {"$__rate_interval": "1m", "$policy": ".*", "$key": ".*"}
"""Values that Grafana puts in for its variables, or similar ones."""


def parsed(expression):
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    assert "$" not in expression, f"{expression} has an unknown variable"
    return promql.parse(expression)


def selected(tree):
    """Each series that is read: its name, and the labels it is chosen by."""
    found = []

    def visit(node):
        if isinstance(node, promql.VectorSelector):
            found.append((node.name, {matcher.name for matcher in node.matchers.matchers}))

    promql.walk(tree, visit)
    return found


def labels_left(tree, labels_of):
    """The labels that the answer to an expression has."""
    if isinstance(tree, promql.VectorSelector):
        return set(labels_of(tree.name))
    if isinstance(tree, promql.MatrixSelector):
        return labels_left(tree.vector_selector, labels_of)
    if isinstance(tree, promql.ParenExpr):
        return labels_left(tree.expr, labels_of)
    if isinstance(tree, promql.Call):
        left = labels_left(tree.args[-1], labels_of)
        return left - {"le"} if tree.func.name == "histogram_quantile" else left
    if isinstance(tree, promql.BinaryExpr):
        left, right = (labels_left(side, labels_of) for side in (tree.lhs, tree.rhs))
        assert left == right, f"{tree.prettify()}: {left} is not {right}"
        return left
    if isinstance(tree, promql.AggregateExpr):
        inner = labels_left(tree.expr, labels_of)
        assert tree.modifier is None or tree.modifier.type == promql.AggModifierType.By
        kept = set(tree.modifier.labels) if tree.modifier else set()
        assert kept <= inner, f"{tree.prettify()}: no {kept - inner} in {inner}"
        return kept
    raise AssertionError(f"{type(tree).__name__} in {tree.prettify()}: its labels are unknown")
