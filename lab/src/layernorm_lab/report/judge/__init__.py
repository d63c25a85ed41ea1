"""The judge: whether one norm is ahead of another, decided from runs by one rule. Every verdict in print is its.

An experiment gives the judge its claims as data (`Claim`): two arms, what is measured, and the trial that decides,
which is planned before it is run. The rule since 2026-11-25 is on docs/results/trials.md; a trial with a `Plan` follows
it. The others were decided by the earlier rule, of which this is left:

1. A pilot. Each arm is trained at the same number of learning rates, in factors of 2, with the seeds `PILOT_SEEDS`. Its
   rate is the best of them in the claim's own measure, never on test data. It must lie inside the grid.
2. The trial. Each arm is trained at its rate with `SEEDS` seeds or more that the pilot did not have. One seed gives
   both arms the same initial weights and the same batches, so that seeds are pairs.
3. The effect is the mean over pairs of the difference of the two values, or of the logarithm of their ratio, with the
   95 % interval of Student's t.
4. The verdict is *equal* if the interval lies inside the claim's margin. Otherwise it is *ahead* or *behind* if the
   effect differs from 0 at the level of 5 %, by Holm's procedure over all claims that one trial decides. Otherwise it
   is *undecided*.

Robustness to the rate needs no pilot: it is measured over the whole grid, and every seed that has all rates counts.

`claim.py` and `measure.py` have the claims as data. `pilot.py` chooses the rates and computes the goals. `decide.py`
finds the pairs, follows Holm's procedure and the looks, and makes the check. `ruling.py` computes the effect with its
interval; its `Ruling.verdict` is step 4. `simulate.py` says how often the rule is wrong.
"""

from ..arms import Arm as Arm
from .claim import PILOT_SEEDS as PILOT_SEEDS
from .claim import SEEDS as SEEDS
from .claim import TRIAL_SEEDS as TRIAL_SEEDS
from .claim import Claim as Claim
from .claim import Plan as Plan
from .claim import Rung as Rung
from .claim import Trial as Trial
from .claim import shared as shared
from .decide import RULE as RULE
from .decide import RULE_OVER_RATES as RULE_OVER_RATES
from .decide import best_rate as best_rate
from .decide import counts as counts
from .decide import decide as decide
from .decide import reported as reported
from .measure import Kept as Kept
from .measure import Measure as Measure
from .measure import NearBest as NearBest
from .measure import Robustness as Robustness
from .measure import Summed as Summed
from .measure import UpdatesToGoal as UpdatesToGoal
from .measure import Value as Value
from .ruling import AHEAD as AHEAD
from .ruling import BEHIND as BEHIND
from .ruling import EQUAL as EQUAL
from .ruling import LEVEL as LEVEL
from .ruling import UNDECIDED as UNDECIDED
from .ruling import VERDICTS as VERDICTS
from .ruling import Ruling as Ruling
from .ruling import capital as capital
from .ruling import chance as chance
from .ruling import counted as counted
from .simulate import simulated_error as simulated_error
