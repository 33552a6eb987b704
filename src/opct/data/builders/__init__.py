"""From embedded questions, behaviors and facts to pairs."""
