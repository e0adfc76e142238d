"""A real small network trained on a simulated board, to show the whole path without a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulery.lazy import lazy

if TYPE_CHECKING:
    from joulery.demo._learning import Recipe as Recipe
    from joulery.demo._live_run import LiveRun as LiveRun
    from joulery.demo._recurring import (
        RECIPE as RECIPE,
        RecurringPlan as RecurringPlan,
        RecurringStory as RecurringStory,
        retrain as retrain,
    )
    from joulery.demo._report import (
        recurring_text as recurring_text,
        saved_drawing as saved_drawing,
        story_page as story_page,
        story_report as story_report,
    )
    from joulery.demo._story import (
        Demonstration as Demonstration,
        DemoPlan as DemoPlan,
        Story as Story,
    )
    from joulery.demo._team import fill_team_store as fill_team_store


__getattr__, __dir__ = lazy(__name__)
