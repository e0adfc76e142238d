"""The board that trainings of these tests load."""

from support.framework_world import world

__all__ = ["world"]
