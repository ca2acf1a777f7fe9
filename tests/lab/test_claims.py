"""Claims about the bandit that take little time; each compares a prediction with a run that knows nothing of it."""

import pytest

from jaxgrpo.lab.bandit_claims import claims

QUICK = ("bandit-ringing", "bandit-threshold", "bandit-single-exponential")


@pytest.mark.parametrize("claim", [c for c in claims() if c.name in QUICK], ids=lambda c: c.name)
def test_claim_holds(x64, claim):
    prediction = claim.predict()
    assert claim.error(prediction, claim.measure(prediction)) <= claim.tolerance


def test_a_wrong_prediction_is_found_out(x64):
    claim = next(c for c in claims() if c.name == "bandit-single-exponential")
    prediction = claim.predict()
    measured = claim.measure(prediction)
    assert claim.error(prediction, 1.02 * measured) > claim.tolerance
