"""Reinforcement learning of reasoning with verifiable rewards, in JAX.

Importing this package initialises nothing and imports no jax: verifier
workers (`jaxrl_reason.rewards`) must start fast. Import the part you need:
`from jaxrl_reason import losses`, `from jaxrl_reason.rewards import math`.
"""

__version__ = '0.1.0'
