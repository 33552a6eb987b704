"""Adaptive attackers for testing your own model: attackers, attack loop, cost and defense rate."""
