"""An observer of pipeline instructions that writes everything down."""

from joulery.pipeline import LETTERS

_LETTER = {kind: letter for letter, kind in LETTERS.items()}


class Notes:
    """An observer that writes everything down."""

    def __init__(self):
        self.seen = []

    def begin_iteration(self, reached, *, microbatches=None):
        """An iteration begins."""
        assert reached is None
        self.microbatches = microbatches
        self.seen.append("begin")

    def end_iteration(self, reached):
        """An iteration has ended."""
        assert reached is None
        self.seen.append("end")

    def before(self, stage, kind, microbatch, reached):
        """An instruction begins."""
        assert reached is None
        self.seen.append(f"{stage}{_LETTER[kind]}{microbatch}")

    def after(self, stage, kind, microbatch, reached):
        """An instruction has ended."""
        assert reached is None
        self.seen.append(f"/{stage}{_LETTER[kind]}{microbatch}")


def words(order):
    """What an observer sees of instructions that run one after the other."""
    return [
        f"{end}{item.stage}{_LETTER[item.kind]}{item.microbatch}"
        for item in order
        for end in ("", "/")
    ]
