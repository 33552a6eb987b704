"""The methods, one algorithm a file: collect the rollouts of a step, compute the loss of a micro-batch."""
