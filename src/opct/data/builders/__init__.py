"""From embedded questions, behaviours and facts to pairs."""
