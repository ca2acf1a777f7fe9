"""Policies small enough to enumerate: every answer to every prompt has a probability that can be written down."""

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int


class _Frozen:
    """An array that may be a static field: compared and hashed by its content."""

    def __init__(self, values: np.ndarray):
        self.values = np.ascontiguousarray(values)

    def __hash__(self):
        return hash((self.values.shape, self.values.tobytes()))

    def __eq__(self, other):
        if not isinstance(other, _Frozen):
            return NotImplemented
        return self.values.shape == other.values.shape and self.values.tobytes() == other.values.tobytes()


class AbstractPolicy(eqx.Module):
    """A policy over a finite set of answers for each of a finite set of prompts; its array leaves are its parameters."""

    @abc.abstractmethod
    def log_probabilities(self) -> Float[Array, "prompts answers"]:
        """Logarithm of the probability of every answer to every prompt."""

    @property
    @abc.abstractmethod
    def answer_length(self) -> int:
        """Tokens of an answer, for importance weights of whole answers."""


class SoftmaxBandit(AbstractPolicy):
    """One logit for each answer but the last, for each prompt: no direction of the parameters is flat.

    Attributes:
        logits: Logits relative to the last answer.
    """

    logits: Float[Array, "prompts free"]

    @classmethod
    def with_success(cls, probability, answers: int = 2, dtype=float) -> "SoftmaxBandit":
        """A bandit whose first answer has a given probability for each prompt, the others alike.

        Args:
            probability: Probabilities, one for each prompt (a number is one prompt).
            answers: Number of answers.
            dtype: Type of the logits.

        Returns:
            The bandit.
        """
        p = np.atleast_1d(np.asarray(probability, float))
        if np.any((p <= 0) | (p >= 1)):
            raise ValueError(f"probability must lie in (0, 1), got {probability}")
        logits = np.zeros((p.size, answers - 1))
        logits[:, 0] = np.log(p) - np.log((1.0 - p) / (answers - 1))
        return cls(jnp.asarray(logits, jnp.result_type(dtype)))

    def log_probabilities(self):
        """Log-softmax of the logits, with 0 for the last answer."""
        last = jnp.zeros_like(self.logits[:, :1])
        return jax.nn.log_softmax(jnp.concatenate([self.logits, last], axis=1), axis=1)

    @property
    def answer_length(self):
        """One token."""
        return 1


class MLPPolicy(AbstractPolicy):
    """A perceptron with one hidden layer from the prompt's features to one logit for each answer.

    Attributes:
        network: The perceptron.
        features: Features of the prompts; not trained.
    """

    network: eqx.nn.MLP
    features: _Frozen = eqx.field(static=True)

    def __init__(self, features: np.ndarray, hidden: int, answers: int, *, key, dtype=float):
        self.features = _Frozen(features)
        network = eqx.nn.MLP(features.shape[1], answers, hidden, 1, activation=jnp.tanh, key=key)
        self.network = jax.tree.map(
            lambda x: x.astype(jnp.result_type(dtype)) if eqx.is_array(x) else x, network
        )

    def log_probabilities(self):
        """Log-softmax of the network's outputs."""
        dtype = self.network.layers[0].weight.dtype
        return jax.nn.log_softmax(jax.vmap(self.network)(jnp.asarray(self.features.values, dtype)), axis=1)

    @property
    def answer_length(self):
        """One token."""
        return 1


class TransformerPolicy(AbstractPolicy):
    """One layer of causal attention over prompt and answer, which is emitted token by token.

    Attributes:
        embedding: Embedding of the tokens.
        position: Embedding of the positions.
        query, key, value, out: The one attention head.
        up, down: The feed-forward layer.
        unembedding: From the state to the logits of the next token.
        prompts: Tokens of the prompts; not trained.
        length: Tokens of an answer.
    """

    embedding: Float[Array, "tokens width"]
    position: Float[Array, "places width"]
    query: Float[Array, "width width"]
    key: Float[Array, "width width"]
    value: Float[Array, "width width"]
    out: Float[Array, "width width"]
    up: Float[Array, "hidden width"]
    down: Float[Array, "width hidden"]
    unembedding: Float[Array, "tokens width"]
    prompts: _Frozen = eqx.field(static=True)
    length: int = eqx.field(static=True)

    def __init__(
        self, prompts: np.ndarray, tokens: int, length: int, width: int, hidden: int, *, key, dtype=float
    ):
        kind = jnp.result_type(dtype)
        places = prompts.shape[1] + length - 1
        shapes = {
            "embedding": (tokens, width),
            "position": (places, width),
            "query": (width, width),
            "key": (width, width),
            "value": (width, width),
            "out": (width, width),
            "up": (hidden, width),
            "down": (width, hidden),
            "unembedding": (tokens, width),
        }
        for i, (name, shape) in enumerate(shapes.items()):
            scale = 1.0 if name in ("embedding", "position") else 1.0 / np.sqrt(shape[1])
            setattr(self, name, scale * jax.random.normal(jax.random.fold_in(key, i), shape, kind))
        self.prompts, self.length = _Frozen(prompts), length

    def _next(self, tokens: Int[Array, " places"]) -> Float[Array, " tokens"]:
        """Log-probabilities of the token that follows."""
        x = self.embedding[tokens] + self.position[: tokens.shape[0]]
        scores = (self.query @ x[-1]) @ (x @ self.key.T).T / np.sqrt(x.shape[1])
        mixed = x[-1] + self.out @ (jax.nn.softmax(scores) @ (x @ self.value.T))
        state = mixed + self.down @ jnp.tanh(self.up @ mixed)
        return jax.nn.log_softmax(self.unembedding @ state)

    def log_probabilities(self):
        """Sum over the answer's tokens, for all answers in lexicographic order."""
        prompts = jnp.asarray(self.prompts.values)
        tokens = self.embedding.shape[0]

        def answers(prompt):
            prefixes, totals = prompt[None, :], jnp.zeros(1, self.embedding.dtype)
            for _ in range(self.length):
                each = jax.vmap(self._next)(prefixes)
                totals = (totals[:, None] + each).ravel()
                following = jnp.tile(jnp.arange(tokens), prefixes.shape[0])
                prefixes = jnp.concatenate([jnp.repeat(prefixes, tokens, axis=0), following[:, None]], axis=1)
            return totals

        return jax.vmap(answers)(prompts)

    @property
    def answer_length(self):
        """Tokens of an answer."""
        return self.length
