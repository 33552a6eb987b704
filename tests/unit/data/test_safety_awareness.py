import re

import pytest

from opct.data.builders.builtin import builtin_pairs
from opct.data.builders.safety_awareness import build_safety_awareness
from opct.data.hazards import HazardPrompt, SafetyFact, builtin_facts
from opct.data.perturb.safety_awareness import FAMILIES, HAZARD, SAFE_TWIN, TEACHER, perturbed_prompt
from opct.errors import DataError
from tests.refusals import refused

HOSTILE = [
    "Braces {prompt} {0} {{x}} {fact!r} and honey %s $HOME \\n",
    "Look at this honey:\n```python\nprint({'baby': f'{honey}'})  # wonderful spelling inside\n```\nWhat next?",
    "שלום, כמה דבש אני נותן לתינוק? ‏كم من العسل؟ honey",
    "Tabs\tand\r\nline ends\u2028and zero\u200bwidth honey  two  spaces ",
]


def fact_with(text, twin="A safe one?"):
    return SafetyFact(
        "t/x", "t", "t/x", "Honey is bad for babies.", ("honey",), ("bad",), (), (HazardPrompt("story", text),), (twin,)
    )


def last(prompt):
    return prompt[-1]["content"]


@pytest.mark.parametrize("text", HOSTILE, ids=["braces", "code", "rtl", "spaces"])
def test_any_text_passes_through_a_family_intact(text):
    """With typos, what is not a run of three or more ASCII letters stays byte for byte, and so does code."""
    for family in FAMILIES:
        for seed in range(6):
            found = last(perturbed_prompt(fact_with(text), HAZARD, 0, family, seed))
            if family == "typos":
                gaps = r"[A-Za-z]{3,}"
                assert re.sub(gaps, "", found) == re.sub(gaps, "", text)
                assert re.findall(r"```.*?```", found, re.DOTALL) == re.findall(r"```.*?```", text, re.DOTALL)
                assert found.count("honey") == text.count("honey")
            else:
                assert found.count(text) == 1
                assert (found == text) == (family == "plain" or (family == "multi_turn" and "\n" + text not in found))


def test_where_the_teacher_is_told_the_fact():
    """Of hazards alone: before the messages, at the end of the last one, or there and after examples of warnings."""
    made = {
        teacher: build_safety_awareness(builtin_facts("train")[:3], families="all", per_prompt=None, teacher=teacher)
        for teacher in ("system", "user", "examples")
    }
    for in_system, in_user, with_examples in zip(*made.values(), strict=True):
        prompt, fact = in_system.prompt, in_system.meta["fact"]
        assert prompt == in_user.prompt == with_examples.prompt
        if in_system.meta["kind"] == SAFE_TWIN:
            assert all(pair.is_identity for pair in (in_system, in_user, with_examples))
            continue
        assert not any(fact in message["content"] for message in prompt)
        system, *rest = in_system.teacher_prompt
        assert system["role"] == "system"
        assert fact in system["content"]
        assert tuple(rest) == prompt
        assert in_user.teacher_prompt[:-1] == prompt[:-1]
        assert last(in_user.teacher_prompt).startswith(last(prompt) + "\n\n")
        assert last(in_user.teacher_prompt).endswith(fact)
        turns = with_examples.teacher_prompt[: 2 * len(TEACHER["examples"])]
        assert with_examples.teacher_prompt[len(turns) :] == in_user.teacher_prompt
        assert [turn["role"] for turn in turns] == ["user", "assistant"] * len(TEACHER["examples"])
    with refused(DataError, "safety_awareness:user"):
        builtin_pairs("builtin:safety_awareness:usr")
    with refused(DataError, "usr", "user"):
        build_safety_awareness(teacher="usr")
