"""Random scenarios of every policy, shipped ones and some of a user's own: the compiled path against the
SimPy model in every column of every step, and the SimPy model against the brute force of ``tests/reference``.

    python experiments/random_scenarios.py --count 3000 [--seed 0]

Both engines must give the same to the last bit. Prints how many scenarios of each policy ran, and the first
difference, if there is one.
"""

import argparse
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.cases import POLICIES, Case, cases
from tests.fast_setups import Chosen, chosen, setup_of
from tests.own_policies import OWN
from tests.test_against_reference import assert_like_the_reference
from tests.test_fast_equal import assert_equal, outcome


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    ran: Counter[str] = Counter()
    referenced: Counter[str] = Counter()
    refused: Counter[str] = Counter()

    @seed(asked.seed)
    @settings(
        max_examples=asked.count,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(cases((*POLICIES, *OWN)), chosen())
    def check(case: Case, how: Chosen) -> None:
        fast = outcome(setup_of(case, how), "compiled")
        slow = outcome(setup_of(case, how), "simpy")
        assert_equal(fast, slow)
        if case.policy in POLICIES:
            assert_like_the_reference(case)
            referenced[case.policy] += 1
        ran[case.policy] += 1
        if isinstance(fast, str) or isinstance(slow, str):
            refused[case.policy] += 1
            return
        assert fast.engine == "compiled"

    check()
    for policy in sorted(ran):
        print(f"{policy:18} {ran[policy]:6} scenarios, {refused[policy]:6} refused in the same words")
    print(
        f"{sum(ran.values())} scenarios equal to the last bit; {sum(referenced.values())} equal to the brute"
        " force"
    )


if __name__ == "__main__":
    main()
