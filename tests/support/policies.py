"""An example of a policy plug-in, the one of ``docs/explanation/policy.md``."""

from dataclasses import dataclass

from joulery.jobs.policies import BatchChoice, RunEnd


@dataclass(frozen=True)
class EpsilonGreedy:
    """The cheapest batch size on average, or at times another one by chance."""

    epsilon: float = 0.2

    name = "epsilon-greedy"
    reasons = ("the default: nothing is known yet", "by chance", "the least mean cost")

    def decide(self, space, state, rng):
        """The next training."""
        if not state:
            return BatchChoice(space.default)
        if rng.random() < self.epsilon:
            return BatchChoice(rng.choice(space.batch_sizes), reason="by chance")
        best = min(state, key=lambda size: sum(state[size]) / len(state[size]))
        return BatchChoice(best, reason="the least mean cost")

    def learn(self, space, state, run):
        """Keep the cost of each run; one that failed counts ten times."""
        factor = 1 if run.end == RunEnd.REACHED else 10
        state.setdefault(run.batch_size, []).append(factor * run.cost)
