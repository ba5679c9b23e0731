"""Who does what when.

In: a number of stages and microbatches, and what each piece of work takes. Out: orders of work, and a timeline with its
bubbles.
"""

from alpaviz.schedule.orders import (
    SCHEDULES,
    Order,
    Task,
    TaskKind,
    count_in_flight,
    get_order,
    order_1f1b,
    order_gpipe,
)
from alpaviz.schedule.simulate import (
    Send,
    StageDurations,
    Timeline,
    TimelineEvent,
    export_trace,
    simulate_schedule,
)

__all__ = [
    "SCHEDULES",
    "Order",
    "Send",
    "StageDurations",
    "Task",
    "TaskKind",
    "Timeline",
    "TimelineEvent",
    "count_in_flight",
    "export_trace",
    "get_order",
    "order_1f1b",
    "order_gpipe",
    "simulate_schedule",
]
