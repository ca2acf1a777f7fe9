"""Pure maths of the dynamics: no input or output, no randomness."""
