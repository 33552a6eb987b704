"""`opct attack`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from opct.cli.options import Split
from opct.cli.settings import BaseUrl, ModelArg, Setting, Threshold, assigned

AttackTarget = Annotated[
    str,
    typer.Argument(
        metavar="RUN_OR_MODEL",
        help="Your model: a run directory or one of its checkpoints, an adapter, a hub id, a model folder, a .gguf "
        "file, smollm2-135m-instruct, or inspect:provider/model with --confirm-remote.",
    ),
]
AttackerModel = Annotated[
    str | None,
    typer.Option(
        metavar="MODEL",
        help="Of refine, named as the target, and of grpo, by its name; smollm2-135m-instruct by default.",
    ),
]
TargetUrl = Annotated[
    str | None, typer.Option(metavar="URL", help="Of the target's endpoint, such as that of a vLLM server.")
]
TargetArg = Annotated[
    list[str] | None, typer.Option(metavar="NAME=VALUE", help="Of the target's provider; repeatable.")
]
AttackerUrl = Annotated[str | None, typer.Option(metavar="URL", help="Of the endpoint of the attacker's model.")]
AttackerArg = Annotated[
    list[str] | None, typer.Option(metavar="NAME=VALUE", help="Of the provider of the attacker's model; repeatable.")
]
AttackerTags = Annotated[
    tuple[str, str] | None,
    typer.Option(metavar="OPEN CLOSE", help="Around the reasoning of the attacker's model; <think> </think>."),
]
AttackerOpens = Annotated[
    bool | None,
    typer.Option(help="Whether the chat template of the attacker's endpoint ends its prompts with an opened block."),
]
TargetTags = Annotated[
    tuple[str, str] | None,
    typer.Option(metavar="OPEN CLOSE", help="Around the target's reasoning; of a run by default as it was trained."),
]
TargetOpens = Annotated[
    bool | None,
    typer.Option(help="Whether the chat template of the target's endpoint ends its prompts with an opened block."),
]
JudgeName = Annotated[
    str, typer.Option(metavar="JUDGE", help="answers, refusals, strongreject, or a folder made by `opct judge train`.")
]
Families = Annotated[
    str | None, typer.Option(metavar="NAMES", help="Of transfer: held_out (default), train, all, or names.")
]
Prompts = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Of transfer: finished prompts instead of families.")
]
Sigma = Annotated[
    float | None, typer.Option(metavar="X", help="Of best_of_n: how strongly letters are disturbed; 0.4.")
]
Training = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=VALUE", help="Of grpo: a setting of its training, max_steps=40; repeatable."),
]
TrainBehaviors = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Of grpo: on which it practises, as --behaviors; by default the same source."),
]
TrainSplit = Annotated[Split | None, typer.Option(help="Of grpo: which of them; train by default.")]
Pool = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Of refine and grpo: successes on other behaviours to show them."),
]
JudgeModel = Annotated[str | None, typer.Option(metavar="NAME", help="Who is asked by a rubric: any model of Inspect.")]
Behaviors = Annotated[str, typer.Option(metavar="FILE", help="builtin, a file or hub set of behaviours.")]
Stop = Annotated[str, typer.Option(metavar="WHEN", help="What ends early: behavior, episode, perfect or never.")]
Shots = Annotated[
    int, typer.Option(metavar="N", min=0, help="Of refine and grpo: how many successes on other behaviours they see.")
]
AttackTokens = Annotated[int, typer.Option(metavar="N", min=1, help="Longest message of refine and grpo.")]
TwinEpisodes = Annotated[int, typer.Option(metavar="N", min=0, help="Of the episodes, for each benign twin; 0: none.")]
MostTokens = Annotated[int | None, typer.Option(metavar="N", min=1, help="Sampled by attacker and target together.")]
Concurrency = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="Calls at once to an endpoint of target or attacker.")
]
AttackOut = Annotated[
    Path | None, typer.Option(metavar="FOLDER", help="In the run's attacks/, else runs/attack-TARGET-ATTACKER.")
]


def attack(
    target: AttackTarget,
    attacker: Annotated[str, typer.Option(metavar="NAME", help="transfer, best_of_n, refine or grpo.")] = "refine",
    attacker_model: AttackerModel = None,
    attacker_base_url: AttackerUrl = None,
    attacker_arg: AttackerArg = None,
    target_base_url: TargetUrl = None,
    target_arg: TargetArg = None,
    attacker_thinking_tags: AttackerTags = None,
    attacker_template_opens_thinking: AttackerOpens = None,
    target_thinking_tags: TargetTags = None,
    target_template_opens_thinking: TargetOpens = None,
    families: Families = None,
    prompts: Prompts = None,
    sigma: Sigma = None,
    train: Training = None,
    train_behaviors: TrainBehaviors = None,
    train_split: TrainSplit = None,
    pool: Pool = None,
    judge: JudgeName = "answers",
    judge_model: JudgeModel = None,
    base_url: BaseUrl = None,
    model_arg: ModelArg = None,
    setting: Setting = None,
    threshold: Threshold = None,
    behaviors: Behaviors = "builtin",
    split: Annotated[Split, typer.Option(help="Which of them.")] = Split.test,
    n_behaviors: Annotated[int | None, typer.Option(metavar="N", min=1, help="At most so many of them.")] = None,
    n: Annotated[int, typer.Option("--n", metavar="N", min=1, help="Episodes against each behaviour.")] = 8,
    rounds: Annotated[int, typer.Option(metavar="K", min=1, help="Tries of each episode.")] = 3,
    stop: Stop = "behavior",
    shots: Shots = 2,
    twin_episodes: TwinEpisodes = 1,
    max_reply_tokens: Annotated[int, typer.Option(metavar="N", min=1, help="Longest reply of the target.")] = 96,
    max_attack_tokens: AttackTokens = 128,
    temperature: Annotated[float, typer.Option(metavar="T", min=0, help="Of the target; 0 is greedy.")] = 1.0,
    attack_temperature: Annotated[float, typer.Option(metavar="T", min=0, help="Of the model of refine.")] = 1.0,
    max_queries: Annotated[int | None, typer.Option(metavar="N", min=1, help="Prompts put to the target.")] = None,
    max_tokens: MostTokens = None,
    max_seconds: Annotated[float | None, typer.Option(metavar="S", help="Begin no batch after so many.")] = None,
    batch_size: Annotated[int, typer.Option(metavar="N", min=1, help="Tries asked and kept at once.")] = 256,
    concurrency: Concurrency = None,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Of every draw.")] = 0,
    out: AttackOut = None,
    label: Annotated[str | None, typer.Option(metavar="NAME", help="Of the target in a report.")] = None,
    dtype: Annotated[str | None, typer.Option(metavar="DTYPE", help="Of models in this process.")] = None,
    confirm_remote: Annotated[
        bool, typer.Option("--confirm-remote", help="The model behind this endpoint is yours to test.")
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the attack in the folder.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the attack in the folder.")] = False,
) -> None:
    """Attack your own model, and measure what its defence holds.

    Nobody else's. The least that should hold: opct attack RUN --attacker transfer --n-behaviors 10

    What it does and measures, who the attackers are and what it cannot show: docs/attack.md
    """
    given = dict(locals())
    _attack({name: value for name, value in given.items() if value is not None})


def _attack(given: dict[str, Any]) -> None:
    from rich.console import Console

    from opct.attack.run import run_attack
    from opct.attack.store import how_to_go_on
    from opct.runs.progress import make_progress

    options = {name: given.pop(name) for name in ("target", "out", "resume", "overwrite", "attacker") if name in given}
    renamed = {"n": "episodes", "base_url": "judge_base_url", "train": "training"}
    settings = {renamed.get(name, name): value for name, value in given.items()}
    for role in ("attacker", "target"):
        if f"{role}_arg" in settings:
            settings[f"{role}_args"] = assigned(settings.pop(f"{role}_arg"), f"--{role}-arg")
    settings["judge_args"] = assigned(settings.pop("model_arg", []), "--model-arg")
    settings["judge_settings"] = assigned(settings.pop("setting", []), "--set")
    settings |= {name: str(settings[name]) for name in ("split", "train_split") if name in settings}
    progress = make_progress()
    try:
        result = run_attack(options.pop("target"), progress=progress, **options, **settings)
    except KeyboardInterrupt as stopped:
        progress.done()
        for note in getattr(stopped, "__notes__", ()):  # of an attack that had begun: how to go on
            print(note, file=sys.stderr)
        raise
    finally:
        progress.done()
    Console().print(result.render())
    if result.ended == "interrupted":
        print(how_to_go_on(result.out, overwritten=options["overwrite"]), file=sys.stderr)
        raise typer.Exit(130)
