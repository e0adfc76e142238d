"""Show a planned pipeline: as text, as a JSON document, as a page with Gantt charts."""

from joulery.cli.plan_view.choice import Choice, Question, choose
from joulery.cli.plan_view.choice_text import choice_text
from joulery.cli.plan_view.document import choice_document, study_document
from joulery.cli.plan_view.html import html_page
from joulery.cli.plan_view.study import Study, Wish, study
from joulery.cli.plan_view.text import study_text

__all__ = [
    "Choice",
    "Question",
    "Study",
    "Wish",
    "choice_document",
    "choice_text",
    "choose",
    "html_page",
    "study",
    "study_document",
    "study_text",
]
