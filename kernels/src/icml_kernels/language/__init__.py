"""Operators of language models: statistics and losses of tokens, from hidden states, without kept logits."""
