"""A real small network trained on a simulated board, to show the whole path without a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulery.lazy import lazy

if TYPE_CHECKING:
    from joulery.demo._learning import Recipe
    from joulery.demo._recurring import RECIPE, RecurringPlan, RecurringStory, retrain
    from joulery.demo._report import recurring_text, story_page, story_report
    from joulery.demo._story import Demonstration, DemoPlan, Story

__all__ = [
    "RECIPE",
    "DemoPlan",
    "Demonstration",
    "Recipe",
    "RecurringPlan",
    "RecurringStory",
    "Story",
    "recurring_text",
    "retrain",
    "story_page",
    "story_report",
]

__getattr__ = lazy(__name__)
