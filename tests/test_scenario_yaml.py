"""Scenario YAML means what it shows."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oppo_sim.errors import OppoError
from oppo_sim.scenario.yaml_text import dump_yaml, parse_yaml

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(
        st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\u2028\u2029\ufeff\ufffe\uffff"),
        max_size=12,
    )
    | st.sampled_from(
        [
            "no",
            "010",
            "1e3",
            "1:30",
            "2020-01-01",
            "~",
            "null",
            "",
            "=",
            "<<",
            "1.",
            ".5",
            "+1",
            "0x1F",
            "1_000",
        ]
    )
)
trees = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abcdef"), inner, max_size=3),
)


@settings(max_examples=50, deadline=None)
@given(trees)
def test_whatever_is_dumped_is_read_back_unchanged(tree: Any) -> None:
    read = parse_yaml(dump_yaml({"a": tree}), "text")["a"]
    assert read == tree
    assert repr(read) == repr(tree)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("5E2", 500.0),
        ("no", "no"),
        ("010", 10),
        ("1:30", "1:30"),
        ("2020-01-01", "2020-01-01"),
        ("0x1F", 31),
        ("1_000", "1_000"),
        ("~", None),
    ],
)
def test_scalars_follow_the_core_types_of_yaml_1_2(text: str, value: object) -> None:
    read = parse_yaml(f"a: {text}", "text")["a"]
    assert (type(read), read) == (type(value), value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: 1\na: 2", "the key 'a' is given twice"),
        ("a: {b: 1, b: 2}", "the key 'b' is given twice"),
        ("a: &x 1\nb: *x", "not supported"),
        ("a: !!python/object/apply:os.system [ls]", "is not supported"),
        ("a: !!binary aGk=", "is not supported"),
        ("1: 2", "is not a name"),
        ("? [1]\n: 2", "is not a name"),
        ("a: .inf", "not finite"),
        ("a: .nan", "not finite"),
        ("a: 1e999", "not finite"),
        ("a: " + "9" * 5000, "more than 30 digits"),
        ("[" * 5000, "nested too deeply"),
        ("a: [", "line 1"),
        ("a: - b", "line 1, column 4"),
        ("\ta: 1", "line 1, column 1"),
        ("a: 1\n---\nb: 2", "expected a single document"),
        ("a: \x00", "not YAML"),
        ("a: !!int x", "invalid literal"),
    ],
)
def test_broken_or_unsafe_yaml_is_one_sentence(text: str, words: str) -> None:
    with pytest.raises(OppoError) as raised:
        parse_yaml(text, "my.yaml")
    message = str(raised.value)
    assert message.startswith("my.yaml")
    assert words in message
    assert "\n" not in message
