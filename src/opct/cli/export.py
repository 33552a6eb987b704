"""`opct export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from opct.runs.console import echo


def export(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run directory, or one of its checkpoints.")],
    adapter: Annotated[Path | None, typer.Option(metavar="DIR", help="Write the PEFT adapter.")] = None,
    merged: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write the whole model, and compare it with the evaluated one.")
    ] = None,
    gguf: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a GGUF file with llama.cpp's converter.")
    ] = None,
    quantize: Annotated[
        str | None, typer.Option(metavar="TYPE", help="Type of the GGUF's weights, such as Q4_K_M. Default: 16 bits.")
    ] = None,
    push: Annotated[
        str | None, typer.Option(metavar="OWNER/NAME", help="Upload to the hub what was written, or the adapter.")
    ] = None,
    private: Annotated[bool, typer.Option("--private", help="Make a new repository private.")] = False,
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16"] | None,
        typer.Option(metavar="DTYPE", help="Dtype of the merged weights. Default: the base model's."),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an earlier export, or files of the repository.")
    ] = False,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run code that comes with the base model.")
    ] = False,
) -> None:
    """Export trained weights for other programs.

    \b
    Examples:
      opct export runs/mine --merged out/model
      opct export runs/mine --adapter out/adapter --push me/my-model
    """
    from opct.reports.export import export as export_weights

    done = export_weights(
        run,
        adapter=adapter,
        merged=merged,
        gguf=gguf,
        quantize=quantize,
        push=push,
        private=private,
        dtype=dtype,
        overwrite=overwrite,
        trust_remote_code=trust_remote_code,
    )
    if done.base_folder is not None:
        echo(f"note: the base model of this adapter is the folder {done.base_folder}, which only this machine has")
    if done.difference is not None:
        echo(f"checked: {done.difference}")
    for place in (done.path, done.url):
        if place is not None:
            echo(str(place))
