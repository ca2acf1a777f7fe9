"""Real GRPO small enough to run here: where the theory is put to the test."""

from jaxgrpo.lab.algorithm import Algorithm, expected_objective
from jaxgrpo.lab.policies import AbstractPolicy, MLPPolicy, SoftmaxBandit, TransformerPolicy
from jaxgrpo.lab.tasks import (
    common_action,
    first_arm,
    mlp_for_addition,
    mlp_for_common_action,
    modular_addition,
    sort_two,
    transformer_for_sorting,
)
from jaxgrpo.lab.train import Training, train_grpo

__all__ = [
    "AbstractPolicy",
    "Algorithm",
    "MLPPolicy",
    "SoftmaxBandit",
    "Training",
    "TransformerPolicy",
    "common_action",
    "expected_objective",
    "first_arm",
    "mlp_for_addition",
    "mlp_for_common_action",
    "modular_addition",
    "sort_two",
    "train_grpo",
    "transformer_for_sorting",
]
