"""Where the answer stands in a reply."""

import time

import pytest

from opct.evals.graders.math_answer import read_formula, read_number
from opct.evals.graders.short_answer import Verdict


def said(answer):
    return answer.verdict if isinstance(answer, Verdict) else answer


NUMBERS = [
    ("Answer: 18", "$18$"),
    ("**Answer:** $18", "$18$"),
    ("Answer: \\$18", "$18$"),
    ("The answer is 18.", "$18$"),
    ("The final answer is: $\\boxed{18}$.", "$18$"),
    ("She makes 9 * 2 = $18.\n#### 18", "$18$"),
    ("\\boxed{18}", "$18$"),
    ("Answer:\n\n18\n", "$18$"),
    ("Answer: 1,450,000 dollars", "$1450000$"),
    ("Answer: 1,234.5", "$1234.5$"),
    ("Answer: -$5", "$-5$"),
    ("Answer: $-5", "$-5$"),
    ("Answer: −5", "$-5$"),
    ("Answer: 18%", "$18$"),
    ("Answer: 18.00", "$18.00$"),
    ("Answer: 1/2", "$1/2$"),
    ("Answer: $\\frac{36}{2}$", "$\\frac{36}{2}$"),
    # of an equation the right side, of several sentences the first
    ("Answer: 9 * 2 = $18 every day", "$18$"),
    ("Answer: 18. She has 3 ducks.", "$18$"),
    ("Answer: 18 apples, that is 18", "$18$"),
    ("\\boxed{18}, so the answer is 20", "$18$"),
    # the last mark that holds a number
    ("Answer: 12\nNo.\nAnswer: 18", "$18$"),
    ("Answer: 18\n\nI hope this answer is clear.", "$18$"),
    # several
    ("Answer: 5 or 6", "unscored:ambiguous"),
    ("Answer: 2, 3", "unscored:ambiguous"),
    ("Answer: 10-5", "unscored:ambiguous"),
    # without a mark: what the last sentence with a number states
    ("So she has 3 + 4 = 7 pens.", "$7$"),
    ("She had 3 and 4. So she has 7 pens now. Nice!", "$7$"),
    ("1. She buys 3 pens.\n2. Now she has 7 pens.", "$7$"),
    ("So the number of ways to take 5 of 6 is 6.", "$6$"),
    ("With 3 pens and 4 more it gives 7 pens in all.", "$7$"),
    ("That makes 7 pens in 2 days.", "unscored:ambiguous"),
    ("He runs 20% more than he did 10 years ago.", "unscored:ambiguous"),
    ("So, there are 720 ways to select 5 from 6.", "$720$"),
    ("We see 720 ways to select 5 from 6.", "unscored:ambiguous"),
    ("There are 12 months in a year, so the total is 240.", "$240$"),
    ("There are 7 days in a week, so Janet makes 126 dollars a week.", "$126$"),
    ("There are 60 minutes in an hour, so she runs 12 miles.", "unscored:ambiguous"),
    ("There are 2 boys for every 3 girls, so the number of girls is 18.", "$18$"),
    ("There are 12 or 13 ways.", "unscored:ambiguous"),
    ("There are 20 - 5 apples left.", "unscored:ambiguous"),
    ("The total is\n\n18.\n\nI hope this helps!", "$18$"),
    ("18. I hope this helps!", "$18$"),
    ("Total:\n18.\nDone.", "$18$"),
    ("Step 3: She earns 18 dollars.", "$18$"),
    ("The total amount that she spent at 3 stores was $15.", "$15$"),
    ("Thus 5 apples cost $10.", "$10$"),
    ("In 3 days she will have 15.", "$15$"),
    ("She has 7 pens vs. 3 before.", "unscored:ambiguous"),
    ("Mr. Smith paid 12 dollars for 4 pens i.e. 3 each.", "unscored:ambiguous"),
    ("It is ±5.", "unscored:ambiguous"),
    ("Of 3 it is 1,45.", "unscored:ambiguous"),
    ("She is 5 or 6.", "unscored:ambiguous"),
    ("I get 18. That is wrong.", "unscored:unparsed"),
    ("\\boxed{10}, \\boxed{12}", "unscored:ambiguous"),
    # a dollar that closes is LaTeX, one that does not is a currency: the sentence ends as it would without it
    ("Answer: $18. Then she has 20 left", "$18$"),
    ("Answer: 18. Then she has 20 left", "$18$"),
    ("Answer: $18. Then she has $20 left", "$18$"),
    ("Answer: $18$. Then she has 20 left", "$18$"),
    ("Answer: $x = 18$. Then she has 20 left", "$18$"),
    # denied
    ("The answer is not 18.", "unscored:unparsed"),
    ("The answer isn't 18.", "unscored:unparsed"),
    ("The answer cannot be 18.", "unscored:unparsed"),
    ("The answer is **not** $18.", "unscored:unparsed"),
    ("The answer is not exactly 18.", "unscored:unparsed"),
    ("The answer is no longer 18.", "unscored:unparsed"),
    ("The answer is not $\\frac{36}{2}$.", "unscored:unparsed"),
    ("The answer is not $\\boxed{18}$.", "unscored:unparsed"),
    ("\\boxed{18} is wrong.", "unscored:unparsed"),
    ("I don't think that the answer is 18.", "unscored:unparsed"),
    ("I do not know whether the answer is 18.", "unscored:unparsed"),
    ("Answer: 18 is wrong; I do not know", "unscored:unparsed"),
    ("Answer: 18 apples is not correct.", "unscored:unparsed"),
    ("Answer: $18, which is clearly wrong", "unscored:unparsed"),
    ("Answer: 18 (wrong)", "unscored:unparsed"),
    ("Answer: 18 can't be right", "unscored:unparsed"),
    ("Answer: 18 is not the right answer", "unscored:unparsed"),
    ("Answer: 18? No, that is too many.", "unscored:unparsed"),
    ("Answer: 18. That's wrong.", "unscored:unparsed"),
    ("Answer: neither 18 nor 20", "unscored:unparsed"),
    ("Answer: 18 and 20 are wrong", "unscored:unparsed"),
    ("Answer: x ≠ 18", "unscored:unparsed"),
    ("Answer: x != 18", "unscored:unparsed"),
    ("Answer: 12\nThe answer is not 18.", "unscored:unparsed"),
    ("So it is not 18.", "unscored:unparsed"),
    ("I get 18, which is wrong.", "unscored:unparsed"),
    # another number is denied
    ("The answer is 18, not 20.", "$18$"),
    ("The answer is not 20 but 18.", "$18$"),
    ("\\boxed{18}, not \\boxed{20}", "$18$"),
    # no denial of the number
    ("Answer: 18, not counting the dog", "$18$"),
    ("Answer: not only 18 apples", "$18$"),
    ("I am not sure, but the answer is 18.", "$18$"),
    ("I am not sure\nThe answer is 18", "$18$"),
    ("more touch it than not\n#### 18", "$18$"),
    ("more touch it than not\n\\boxed{18}", "$18$"),
    ("That is not wrong. The answer is 18.", "$18$"),
    ("Answer: 18. No more apples are left.", "$18$"),
    # powers of ten, and numbers that must not be read in part
    ("Answer: 1e3", "$1000$"),
    ("Answer: 1E+3.", "$1000$"),
    ("Answer: -2.5e3 dollars", "$-2500$"),
    ("Answer: 1.5e-2", "$0.015$"),
    ("\\boxed{1e3}", "$1000$"),
    ("So she has 1e3", "$1000$"),
    ("Answer: 1e400", "unscored:unparsed"),
    ("Answer: 10^3", "unscored:unparsed"),
    ("Answer: 10^2 = 100", "$100$"),
    ("Answer: $2 \\times 10^3$", "$2 \\times 10^3$"),
    ("Answer: 1.450.000", "unscored:unparsed"),
    ("Answer: 1_000", "unscored:unparsed"),
    ("Answer: 0x12", "unscored:unparsed"),
    ("Answer: 5²", "unscored:unparsed"),
    ("Answer: 3½", "unscored:unparsed"),
    ("Answer: 3x2", "unscored:unparsed"),
    ("That is 6x12=72.", "$72$"),
    ("It costs 1.450.000", "unscored:unparsed"),
    # separators of thousands
    ("Answer: 18\\,000", "$18000$"),
    ("Answer: $18{,}000$", "$18000$"),
    ("Answer: 18\u202f000", "$18000$"),
    ("Answer: 1\u00a0450\u00a0000 dollars", "$1450000$"),
    ("Answer: 18 000", "unscored:ambiguous"),
    ("Answer: 1,45", "unscored:ambiguous"),
    ("Answer: 0,125", "unscored:ambiguous"),
    ("Answer: 12,34,567", "unscored:ambiguous"),
    ("It costs 1,45", "unscored:ambiguous"),
    # signs
    ("Answer: \u22125 degrees", "$-5$"),
    ("Answer: –5", "$-5$"),
    ("Answer: minus 5", "$-5$"),
    ("Answer: negative $5", "$-5$"),
    ("Answer: −$5", "$-5$"),
    ("Answer: -US$5", "$-5$"),
    ("Answer: −1/2", "$-1/2$"),
    ("It is minus 5.", "$-5$"),
    ("Answer: minus 5 of 5", "unscored:ambiguous"),
    ("That is 10 minus 5.", "unscored:ambiguous"),
    ("That is what A has minus $5.", "$5$"),
    ("Answer: - 5", "$5$"),  # a dash before the answer
    ("The answer is—5", "$5$"),
    ("Answer: ±5", "unscored:ambiguous"),
    ("Answer: +/-5", "unscored:ambiguous"),
    ("Answer: \uff11\uff18", "$18$"),
    # fractions
    ("Answer: 3/4 of the cake", "$3/4$"),
    ("Answer: 1 1/2 cups", "$3/2$"),
    ("Answer: 1 and 1/2 cups", "$3/2$"),
    ("Answer: 36/2 = 18", "$18$"),
    ("Answer: \\(18\\)", "$18$"),
    ("Answer: 3 7/2", "unscored:ambiguous"),
    ("Answer: 1/0", "unscored:ambiguous"),
    ("Answer: 1/2/2024", "unscored:ambiguous"),
    ("She ate 3/4.", "$3/4$"),
    # units and percent
    ("Answer: 18 %", "$18$"),
    ("Answer: 18 percent", "$18$"),
    ("Answer: 18kg", "$18$"),
    ("Answer: 18 cm^2", "$18$"),
    ("Answer: 18 m²", "$18$"),
    ("Answer: 18 m2", "$18$"),
    ("Answer: $18/hour", "$18$"),
    ("Answer: 2 dozen", "$2$"),
    ("Answer: $4 million", "$4$"),
    ("Answer: €18", "$18$"),
    ("Answer: 3 hours and 20 minutes", "unscored:ambiguous"),
    # ranges and several unknowns
    ("Answer: 5–6", "unscored:ambiguous"),
    ("Answer: between 5 and 6", "unscored:ambiguous"),
    ("Answer: 5 to 6 apples", "unscored:ambiguous"),
    ("Answer: 3:30", "unscored:ambiguous"),
    ("Answer: x = 18 and y = 20", "unscored:ambiguous"),
    ("Answer: 3 * 3 * 2 = 9 * 2 = 18", "$18$"),
    ("Answer: 20% = 0.2, so 0.2 * 650 = 130 children", "$130$"),
    ("Answer: x = 36/2, so x = 18", "$18$"),
    # none
    ("Answer: eighteen", "unscored:unparsed"),
    ("I do not know.", "unscored:unparsed"),
    (" \n", "unscored:empty"),
]


@pytest.mark.parametrize(("reply", "answer"), NUMBERS)
def test_numbers(reply, answer):
    assert said(read_number(reply, is_cut=False)) == answer


FORMULAS = [
    ("So it is $\\boxed{\\frac{1}{2}}$.", "$\\frac{1}{2}$"),
    ("\\boxed{\\left( 3, \\frac{\\pi}{2} \\right)}", "$\\left( 3, \\frac{\\pi}{2} \\right)$"),
    ("\\boxed{\\{1,2\\}}", "$\\{1,2\\}$"),
    ("\\fbox{4}", "$4$"),
    ("Answer: \\boxed{7}", "$7$"),
    ("\\boxed{\n 7\n}", "$7$"),
    # several boxes: next to each other they are one answer, else the last one counts
    ("$\\boxed{2}$ and $\\boxed{3}$", "$2, 3$"),
    ("\\boxed{2}, \\boxed{2}", "$2$"),
    ("\\boxed{1} is the first step. Now \\boxed{2}.", "$2$"),
    ("\\boxed{1}. So our answer is right: 2 = 1 + 1.", "$1$"),
    ("\\boxed{} so \\boxed{5}", "$5$"),
    # marked lines
    ("The answer is $x^2+1$.", "$x^2+1$"),
    ("Answer: x^2+1", "$x^2+1$"),
    ("Answer: \\frac12", "$\\frac12$"),
    ("The final answer is \\( 3\\pi \\)", "\\( 3\\pi \\)"),
    ("Answer: (1, 2)", "$(1, 2)$"),
    ("Answer: 5 or 6", "$5, 6$"),
    ("Answer: 45 degrees", "$45$"),
    ("Answer: 3 out of 5", "unscored:ambiguous"),
    ("Answer: Evelyn", "$\\text{Evelyn}$"),
    ("The answer is that nobody can know it", "unscored:unparsed"),
    ("Answer: 1e3", "$1000$"),
    ("Answer: 2e-1", "$2e-1$"),
    ("Answer: −5", "$-5$"),
    ("Answer: not defined", "$\\text{not defined}$"),
    # denied
    ("The answer is not $x^2+1$.", "unscored:unparsed"),
    ("The answer is not 5.", "unscored:unparsed"),
    ("The answer isn't $x^2+1$.", "unscored:unparsed"),
    ("Answer: $x^2+1$ is wrong", "unscored:unparsed"),
    ("It is not $\\boxed{7}$.", "unscored:unparsed"),
    ("\\boxed{7} cannot be right; \\boxed{8}", "$8$"),
    ("I doubt that the answer is $x$.", "unscored:unparsed"),
    ("so it is not $x=3$", "unscored:unparsed"),
    # without a mark: what the last sentence with a formula states
    ("so we get $x=3$", "$x=3$"),
    ("Let $y=2$. Then\n\\[x = 3\\]", "\\[x = 3\\]"),
    ("The value of $f(2)$ is $5$.", "$5$"),
    ("So $f(2)$ and then $x=3$.", "$x=3$"),
    ("If $x=2$ and $y=3$, we know more.", "unscored:ambiguous"),
    ("So $2x=6$, so $x=3$.", "$x=3$"),
    ("With $x$ and $y$ we go on.", "unscored:ambiguous"),
    ("There are 20 of them in $[0, 1]$.", "unscored:ambiguous"),
    ("It is $5$. That is wrong.", "unscored:unparsed"),
    ("By $x$ there are 720 ways to select 5 students.", "unscored:ambiguous"),
    ("So there are 12 ways.", "$12$"),
    ("There are $6$ solutions for $n=4$.", "$6$"),
    ("So the distance is $5$ units when $x=2$.", "$5$"),
    ("so the minimum value is $-\\frac{1}{4}$, where $x=3$", "$-\\frac{1}{4}$"),
    ("Thus $x=\\frac{1}{2}$.\n\nThis took 3 steps.", "$x=\\frac{1}{2}$"),
    ("With $x=2$ we go on.\nThe total is 12.", "$12$"),
    ("There are $12$ such $n$.", "$12$"),
    ("So $n$ can be $12$.", "$12$"),
    ("nothing", "unscored:unparsed"),
    ("", "unscored:empty"),
]


@pytest.mark.parametrize(("reply", "answer"), FORMULAS)
def test_formulas(reply, answer):
    assert said(read_formula(reply, is_cut=False)) == answer


@pytest.mark.parametrize("read", [read_number, read_formula])
def test_a_cut_reply_has_no_unmarked_answer(read):
    assert said(read("First $2 + 3 = 5$, then 5 times", is_cut=True)) == "unscored:truncated"
    assert said(read("Answer: 5\n\nLet me check this by", is_cut=True)) == "$5$"
    assert said(read("Then \\boxed{\\frac{1}{2", is_cut=True)) == "unscored:truncated"
    assert said(read("", is_cut=True)) == "unscored:empty"


PIECES = ["x", "1 ", "1,", "Answer: ", "\\boxed{", "\\boxed{1}", "$", "{", "- ", "-", "\\", "\\("]
PIECES += ["not ", "not 1 ", "1 is ", "Answer: 1 not ", "answer is ", "1/", "1e", "x = 1, "]


@pytest.mark.parametrize("piece", PIECES)
def test_long_replies_are_read_fast_and_give_short_answers(piece):
    """50,000 characters of anything take well under a second of CPU; what goes to math-verify is at most a page."""
    reply = (piece * 50_000)[:50_000]
    start = time.process_time()
    answers = [said(read(reply, is_cut=False)) for read in (read_number, read_formula)]
    assert time.process_time() - start < 2
    assert all(len(answer) <= 1010 for answer in answers)


def test_an_answer_before_a_long_ramble_is_found():
    assert read_number("Answer: 18\n" + "and so on " * 5_000, is_cut=True) == "$18$"
    assert read_formula("\\boxed{18}\n" + "and so on " * 5_000, is_cut=True) == "$18$"


@pytest.mark.parametrize(
    ("reply", "number"),
    [
        ("So 1000+250.\nAnswer: 12", None),  # of 1250
        ("Answer: 12\nLet me check: 12 is", "$12$"),
        (r"\boxed{12} and so the", "$12$"),
        ("The answer is 7", None),
    ],
)
def test_a_line_in_which_the_reply_was_cut_has_no_answer(reply, number):
    found = read_number(reply, is_cut=True)
    assert found == (Verdict("unscored:truncated") if number is None else number)


def test_a_formula_that_was_cut_is_none():
    assert read_formula(r"The answer is \frac{3}{4", is_cut=True) == Verdict("unscored:truncated")
    assert read_formula(r"The answer is \frac{3}{4}", is_cut=False) == r"$\frac{3}{4}$"
