"""Simulation: the update rule itself and its stochastic differential equation, one by one and in ensembles."""
