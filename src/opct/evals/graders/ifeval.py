"""IFEval's verifier as lm-eval has it, as a function: which instructions does a reply follow?

It looks for nothing on the network: nltk's sentence splitter must be on the disk, and where it is not the error says
how to get it. langdetect draws at random; its seed is fixed here, so that a reply is always graded alike.
"""

from __future__ import annotations

import importlib.util
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from opct.errors import EvaluationError

# instruction -> the arguments without which lm-eval draws them at random
INSTRUCTIONS: dict[str, tuple[str, ...]] = {
    "change_case:capital_word_frequency": ("capital_frequency", "capital_relation"),
    "change_case:english_capital": (),
    "change_case:english_lowercase": (),
    "combination:repeat_prompt": ("prompt_to_repeat",),
    "combination:two_responses": (),
    "detectable_content:number_placeholders": ("num_placeholders",),
    "detectable_content:postscript": ("postscript_marker",),
    "detectable_format:constrained_response": (),
    "detectable_format:json_format": (),
    "detectable_format:multiple_sections": ("num_sections", "section_spliter"),
    "detectable_format:number_bullet_lists": ("num_bullets",),
    "detectable_format:number_highlighted_sections": ("num_highlights",),
    "detectable_format:title": (),
    "keywords:existence": ("keywords",),
    "keywords:forbidden_words": ("forbidden_words",),
    "keywords:frequency": ("frequency", "keyword", "relation"),
    "keywords:letter_frequency": ("let_frequency", "let_relation", "letter"),
    "language:response_language": ("language",),
    "length_constraints:nth_paragraph_first_word": ("first_word", "nth_paragraph", "num_paragraphs"),
    "length_constraints:number_paragraphs": ("num_paragraphs",),
    "length_constraints:number_sentences": ("num_sentences", "relation"),
    "length_constraints:number_words": ("num_words", "relation"),
    "punctuation:no_comma": (),
    "startend:end_checker": ("end_phrase",),
    "startend:quotation": (),
}
_ONE_AT_A_TIME = threading.Lock()
"""langdetect loads its languages at the first use; a second thread would find none, and lm-eval takes that for
"followed"."""

PACKAGES = ("lm_eval", "langdetect", "immutabledict", "nltk")


@dataclass(frozen=True)
class Followed:
    """Whether each instruction of a prompt is followed: in the reply as it is, and in the best of its trimmed forms."""

    strict: tuple[bool, ...]
    loose: tuple[bool, ...]


def check_verifier() -> None:
    """Refuse to go on without the verifier and its data.

    Raises:
        EvaluationError: a package or nltk's `punkt_tab` is missing.
    """
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise EvaluationError(
            f"IFEval's verifier needs {', '.join(missing)}, not installed here: pip install 'opct[capability]'."
        )
    import nltk

    try:
        nltk.data.find("tokenizers/punkt_tab/english/")
    except LookupError as error:
        raise EvaluationError(
            "IFEval's verifier splits sentences with nltk's punkt_tab, which is not on this machine: run "
            "`python -m nltk.downloader punkt_tab`, or set NLTK_DATA to a folder that has tokenizers/punkt_tab."
        ) from error


def followed(
    prompt: str, instructions: Sequence[str], arguments: Sequence[Mapping[str, Any]], reply: str
) -> Followed | None:
    """Which of the instructions a reply follows; None where the verifier fails at it.

    Args:
        instructions: their names; see `INSTRUCTIONS`.
        arguments: of each instruction.
    """
    import langdetect
    from lm_eval.tasks.ifeval import utils

    langdetect.DetectorFactory.seed = 0
    asked = utils.InputExample(
        key=0, instruction_id_list=list(instructions), prompt=prompt, kwargs=[dict(each) for each in arguments]
    )
    try:
        with _ONE_AT_A_TIME:
            strict = utils.test_instruction_following_strict(asked, reply)
            loose = utils.test_instruction_following_loose(asked, reply)
    except (ValueError, TypeError, IndexError, RecursionError, re.error):
        return None
    return Followed(tuple(strict.follow_instruction_list), tuple(loose.follow_instruction_list))
