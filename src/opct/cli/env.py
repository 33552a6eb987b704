"""`opct env`."""

from __future__ import annotations


def env() -> None:
    """Print versions, hardware and caches, for a bug report."""
    from rich.console import Console

    with Console(stderr=True).status("collecting (importing torch, timing a matrix product) ..."):
        rows = _rows()
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"{name:<{width}}  {value}")


def _rows() -> list[tuple[str, str]]:
    from opct.config.schema import DEFAULT_MODEL, Q4_MODEL
    from opct.distributed import launched, rank, size
    from opct.models.gguf import cache_dir, hub_snapshot, smollm2_q4_path
    from opct.models.loading import choose_device, choose_dtype
    from opct.runs.manifest import git_commit, hardware, package_versions

    machine = hardware()
    device = choose_device("auto")
    _, why = choose_dtype("auto", device, hidden_size=576)
    rows = [(name, version or "not installed") for name, version in package_versions().items()]
    rows += [
        ("git commit", git_commit() or "not a checkout"),
        ("platform", machine["platform"]),
        ("processor", machine["processor"]),
        ("cores", str(machine["cores"])),
        ("memory", f"{machine['memory_gib']} GiB"),
        ("accelerators", ", ".join(machine["accelerators"]) or "none"),
        ("device", str(device)),
        ("processes", f"{size()}, this is {rank()}" if launched() else "1"),
        ("dtype", why),
        ("cache folder", str(cache_dir())),
        (DEFAULT_MODEL, "not in the hub's cache (fetched when first used)" if hub_snapshot() is None else "cached"),
        (Q4_MODEL, "cached" if smollm2_q4_path().is_dir() else "not in the cache (fetched when first used)"),
    ]
    return rows
