"""What judging will take and has taken: calls, tokens, and money where the user says what a token costs."""

from __future__ import annotations

from dataclasses import dataclass

from opct.errors import EvaluationError
from opct.judges.protocol import Usage

BYTES_A_TOKEN = 3.5  # of English about 4, of other scripts fewer characters but more bytes; an estimate, and named so


@dataclass(frozen=True)
class Prices:
    """What a million tokens cost, in whatever currency the user thinks in.

    Raises:
        EvaluationError: a price is below 0.
    """

    input: float
    output: float

    def __post_init__(self) -> None:
        if not (self.input >= 0 and self.output >= 0):
            raise EvaluationError(f"The prices {self.input} and {self.output} per million tokens must be at least 0.")

    def of(self, usage: Usage) -> float:
        """The price of what was used."""
        return (usage.input_tokens * self.input + usage.output_tokens * self.output) / 1e6


@dataclass(frozen=True)
class CostEstimate:
    """What is to come, before any call.

    Attributes:
        requests: how many replies are to be judged.
        kept: of these, how many an earlier run has judged.
        unasked: of these, how many have no text and are asked of nobody.
        calls: how many calls it takes where every first answer counts: replies that say the same are asked once.
        input_tokens: estimated from the bytes of the prompts.
        most_output_tokens: where every answer is as long as it may be.
        most_calls: where every answer needs every retry.
    """

    requests: int
    kept: int
    unasked: int
    calls: int
    input_tokens: int
    most_output_tokens: int
    most_calls: int

    def describe(self, prices: Prices | None = None) -> str:
        """One line for a person."""
        line = (
            f"{self.requests} replies: {self.kept} judged before, {self.unasked} empty; {self.calls} calls (at most "
            f"{self.most_calls} with retries), about {self.input_tokens:,} tokens in, at most "
            f"{self.most_output_tokens:,} out"
        )
        if prices is None:
            return line
        most = prices.of(Usage(self.calls, self.input_tokens, self.most_output_tokens))
        return f"{line}; about {most:.2f} at most, without retries"


def tokens_of(text: str) -> int:
    """About how many tokens a text has."""
    return round(len(text.encode("utf-8", "surrogatepass")) / BYTES_A_TOKEN)


def describe_usage(usage: Usage, prices: Prices | None = None) -> str:
    """What was used, in one line."""
    line = f"{usage.calls} calls, {usage.input_tokens:,} tokens in, {usage.output_tokens:,} out"
    return line if prices is None else f"{line}; {prices.of(usage):.4f} paid by the given prices"
