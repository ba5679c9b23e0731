"""The live views.

In: a `Planner` or a `Plan`. Out: a widget (an anywidget over one ES module that is built from extension/), static HTML
and text for where no kernel runs, and the MIME bundle that holds all of them.
"""

from alpaviz.widget.bundle import PLAN_MIME, make_bundle
from alpaviz.widget.plan_widget import PlanWidget
from alpaviz.widget.planner_widget import PlannerWidget
from alpaviz.widget.static_view import render_plan_html

__all__ = ["PLAN_MIME", "PlanWidget", "PlannerWidget", "make_bundle", "render_plan_html"]
