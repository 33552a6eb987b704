"""Settings of a judge: the same section for `opct judge` and `opct attack`."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from opct.config.schema import Section


class EndpointSettings(Section):
    """How a model of Inspect is reached and how long it is waited for."""

    base_url: str | None = Field(None, description="Address of the endpoint, such as that of a vLLM server.")
    model_args: dict[str, Any] = Field({}, description="Arguments of the provider; secrets go into the environment.")
    max_connections: int | None = Field(None, ge=1, description="Most calls at once; by default the provider's own.")
    max_retries: int = Field(5, ge=0, description="How often Inspect repeats a call that failed.")
    timeout_s: int = Field(
        120, ge=1, description="Of one call to an endpoint; a local model takes as long as it takes."
    )


class JudgeConfig(EndpointSettings):
    """Who judges replies, and how a model that judges is asked."""

    name: str = Field("answers", description="A rule, a rubric, or a folder made by `opct judge train`.")
    model: str | None = Field(None, description="The model that a rubric is put to, as Inspect names it.")
    threshold: float | None = Field(None, gt=0, le=1, description="Lowest score that counts as yes; 0.5 by default.")
    temperature: float | None = Field(0.0, ge=0, description="null leaves it to the model.")
    max_completion_tokens: int = Field(600, ge=1, description="Longest answer of the judge.")
    seed: int = Field(0, ge=0, description="Of the marks in the prompt, and of the model where it takes one.")
    retries: int = Field(2, ge=0, description="How often an answer that cannot be read is asked for again.")
    give_up_after: int = Field(5, ge=1, description="Requests in a row without an answer that stop the judging.")
