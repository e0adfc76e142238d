"""Show a planned pipeline: as text, as a JSON document, as a page with Gantt charts."""

from joulery.cli.plan_view.document import plan_document
from joulery.cli.plan_view.html import plan_page
from joulery.cli.plan_view.rows import PlanView
from joulery.cli.plan_view.text import plan_text

__all__ = ["PlanView", "plan_document", "plan_page", "plan_text"]
