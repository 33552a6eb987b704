"""Adaptive attackers for those who test their own model: what they try, what it costs, what was defended."""
