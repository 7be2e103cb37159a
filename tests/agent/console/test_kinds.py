"""Kinds of questions: which feature is shown, and the shares of the arms by its values."""

from armwise.agent.console.served_comparison import shares_by_kind


def test_kinds_are_the_values_of_the_most_frequent_feature_and_the_rest_are_others() -> None:
    """Eight by name; a question without the feature is among the others."""
    draws = [("a", {f"tier=t{i}": 1.0, "w=x": 1.0}) for i in range(10) for _ in range(12 - i)]
    draws += [("b", {"tier=t0": 1.0}), ("b", {"length": 2.0}), ("b", {"ask=who": 1.0})]
    feature, kinds = shares_by_kind(draws)
    assert feature == "tier"
    assert [(one.name, one.n) for one in kinds] == [
        *[("t0", 13), *((f"t{i}", 12 - i) for i in range(1, 8))],
        ("all others", 9),
    ]
    assert kinds[0].shares == {"a": 12 / 13, "b": 1 / 13}
    assert kinds[-1].shares == {"a": 7 / 9, "b": 2 / 9}
    assert shares_by_kind([("a", {"w=x": 1.0})]) == ("", [])
    assert shares_by_kind([]) == ("", [])


def test_the_kind_that_is_shown_tells_questions_apart() -> None:
    """What a caller sent comes before the form of a question, and several values before a single one."""
    one = {"ask=who": 1.0, "tier=free": 1.0, "site=all": 1.0}
    other = {"ask=how": 1.0, "tier=paid": 1.0, "site=all": 1.0}
    assert shares_by_kind([("a", one), ("b", other)])[0] == "tier"
    alike = [("a", {"ask=who": 1.0, "site=all": 1.0}), ("b", {"ask=how": 1.0, "site=all": 1.0})]
    assert shares_by_kind(alike)[0] == "ask"
    rarely = [("a", one), ("b", {"shop=x": 1.0}), ("b", {"shop=y": 1.0}), ("b", {"shop=y": 1.0, **other})]
    assert shares_by_kind(rarely)[0] == "shop", "of the sent ones the most frequent"
