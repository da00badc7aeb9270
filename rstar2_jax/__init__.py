"""rstar2_jax: train a language model that thinks and runs Python.

Read `rl_loop.py` first: one page that calls the rooms in data-flow order.
"""
