"""`opct env`."""

from __future__ import annotations

import os

from opct.runs.console import make_console

PATHS = ("OPCT_CAPABILITY_DATA", "OPCT_SMOLLM2_WHEEL")
"""Environment variables that name a file or folder and have no default; others might be secrets."""


def env() -> None:
    """Print versions, hardware and caches, for a bug report.

    \b
    Examples:
      opct env
      opct env > env.txt
    """
    with make_console(stderr=True).status("collecting (importing torch, timing a matrix product) ..."):
        rows = _rows()
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"{name:<{width}}  {value}")


def _rows() -> list[tuple[str, str]]:
    import torch
    from huggingface_hub.constants import HF_HOME

    from opct.config.schema import DEFAULT_MODEL, Q4_MODEL
    from opct.distributed import launched, rank, size
    from opct.evals.judges.calibration import calibrations_folder
    from opct.models.gguf import cache_dir, hub_snapshot, smollm2_q4_path
    from opct.models.loading import choose_device, choose_dtype
    from opct.runs.manifest import git_commit, hardware, package_versions

    machine = hardware()
    device, accelerators = choose_device("auto"), []
    for i, name in enumerate(machine["accelerators"]):
        free, total = torch.cuda.mem_get_info(i)
        accelerators.append(f"{name} ({free / 2**30:.1f} of {total / 2**30:.1f} GiB free)")
    _, why = choose_dtype("auto", device, hidden_size=576)
    return [
        *((name, version or "not installed") for name, version in package_versions().items()),
        ("git commit", git_commit() or "not a checkout"),
        ("platform", machine["platform"]),
        ("processor", machine["processor"]),
        ("cores", str(machine["cores"])),
        ("memory", f"{machine['memory_gib']} GiB"),
        ("CUDA", torch.version.cuda or "torch was built without it"),
        ("accelerators", ", ".join(accelerators) or "none"),
        ("device", str(device)),
        ("processes", f"{size()}, this is {rank()}" if launched() else "1"),
        ("dtype", why),
        ("OPCT_CACHE", str(cache_dir())),
        ("OPCT_CALIBRATIONS", str(calibrations_folder())),
        ("HF_HOME", HF_HOME),
        *((name, os.environ.get(name, "not set")) for name in PATHS),
        (DEFAULT_MODEL, "not in the hub's cache (fetched when first used)" if hub_snapshot() is None else "cached"),
        (Q4_MODEL, "cached" if smollm2_q4_path().is_dir() else "not in the cache (fetched when first used)"),
    ]
