"""The update rule written plainly, and the exact covariance of its linear form, as independent references."""

import numpy as np


def update_rule(
    *,
    steps,
    gain,
    sigma,
    momentum,
    drive,
    start,
    normals,
    interval=1,
    lag=0,
    staleness=1.0,
    passes=1,
    factor=lambda t: 1.0,
    moment=None,
    spread=lambda z: 1.0,
):
    """One path, coordinate by coordinate; returns the coordinates after every step, `(steps + 1, nodes)`.

    `moment(force, step)` gives what Adam divides by, and `spread(z)` scales the noise.
    """
    z = np.array(start, float)
    u = np.zeros_like(z)
    course, rollouts, noise = [z.copy()], [], []
    batches = interval // passes
    for t in range(steps):
        since = t % interval
        if since == 0:
            rollouts.append(z.copy())
            noise = []
        made = rollouts[max(len(rollouts) - 1 - lag, 0)]
        if since < batches:
            noise.append(normals[t])
        force = (1.0 - staleness) * drive(z) + staleness * drive(made)
        divisor = 1.0 if moment is None else moment(force, t)
        push = gain * factor(t) * force + sigma * factor(t) * spread(made) * noise[since % batches]
        u = momentum * u + push / divisor
        z = z + u
        course.append(z.copy())
    return np.array(course)


def linear_moments(*, steps, stiffness, sigma, momentum, error, interval=1, lag=0, staleness=1.0, passes=1):
    """Mean and variance of the error after every step, by the response of the whole course to every noise.

    The course is linear in the start and in the noise of each mini-batch: the responses are found by running the
    plain rule once for each of them.
    """

    def run(start, normals, strength):
        return update_rule(
            steps=steps,
            gain=stiffness,
            sigma=strength,
            momentum=momentum,
            drive=lambda z: -z,
            start=[start],
            normals=normals,
            interval=interval,
            lag=lag,
            staleness=staleness,
            passes=passes,
        )[:, 0]

    none = np.zeros(steps)
    mean = run(error, none, 0.0)
    variance = np.zeros(steps + 1)
    for t in range(steps):
        one = none.copy()
        one[t] = 1.0
        variance += run(0.0, one, sigma) ** 2
    return mean, variance
