"""Settings of a judge: the same section for `opct judge` and `opct attack`."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from opct.config.section import Section


class EndpointSettings(Section):
    """How an Inspect model is reached: address, connections, retries and timeouts."""

    base_url: str | None = Field(None, description="Address of the endpoint, such as that of a vLLM server.")
    model_args: dict[str, Any] = Field({}, description="Arguments of the provider; secrets go into the environment.")
    max_connections: int | None = Field(None, ge=1, description="Most calls at once; default: the provider's limit.")
    max_retries: int = Field(5, ge=0, description="How often Inspect retries a failed call.")
    timeout_s: int = Field(120, ge=1, description="Timeout of one call to an endpoint; a local model has none.")


class JudgeConfig(EndpointSettings):
    """The judge of replies, and how its model is sampled."""

    name: str = Field("answers", description="A rubric; of an attack also a rule.")
    model: str | None = Field(None, description="The judge model of a rubric, as Inspect names it.")
    threshold: float | None = Field(None, gt=0, le=1, description="Lowest score that counts as yes; 0.5 by default.")
    temperature: float | None = Field(0.0, ge=0, description="null: the model's default.")
    max_completion_tokens: int = Field(600, ge=1, description="Most tokens in an answer of the judge.")
    seed: int = Field(0, ge=0, description="Seed of the marks in the prompt, and of the model where it takes one.")
    retries: int = Field(
        2, ge=0, description="How often the judge is asked again after an answer that cannot be parsed."
    )
    give_up_after: int = Field(5, ge=1, description="Number of unanswered requests in a row that stops the judging.")
