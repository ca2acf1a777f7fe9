"""Inference: what a log says about its task, and what it cannot say."""
