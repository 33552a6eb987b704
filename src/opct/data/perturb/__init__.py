"""Families of perturbations: from a clean prompt to a perturbed one, one file an axis."""
