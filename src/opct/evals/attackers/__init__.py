"""Attackers: Inspect solvers that put prompts to a target; see `opct.evals.attackers.episode`."""
