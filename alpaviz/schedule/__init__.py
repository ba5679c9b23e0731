"""Who does what when.

In: a number of stages and microbatches (`get_order` and the schedules behind it give each stage's tasks in order), the
seconds that a stage's forward, backward and update take, and those of a send between two stages. Out: a `Timeline` with
the start and end of every task and send, bubbles, and microbatches in flight (`simulate_schedule`), and its trace for
Chrome and Perfetto (`export_trace`). Or in: a plan. Out: a `Simulation`, with the memory of devices over time and the
traffic between stages (`simulate`).
"""

from alpaviz.schedule.orders import (
    RUNNABLE_SCHEDULES,
    SCHEDULES,
    Order,
    Task,
    TaskKind,
    count_change,
    count_chunks,
    count_in_flight,
    count_most_in_flight,
    get_order,
    order_1f1b,
    order_forward,
    order_gpipe,
    order_interleaved,
    order_zero_bubble,
)
from alpaviz.schedule.simulation import (
    DeviceMemory,
    LinkTraffic,
    MemoryPoint,
    Simulation,
    play_stages,
    simulate,
)
from alpaviz.schedule.timeline import (
    Send,
    StageDurations,
    Timeline,
    TimelineEvent,
    simulate_schedule,
)
from alpaviz.schedule.trace import export_trace

__all__ = [
    "RUNNABLE_SCHEDULES",
    "SCHEDULES",
    "DeviceMemory",
    "LinkTraffic",
    "MemoryPoint",
    "Order",
    "Send",
    "Simulation",
    "StageDurations",
    "Task",
    "TaskKind",
    "Timeline",
    "TimelineEvent",
    "count_change",
    "count_chunks",
    "count_in_flight",
    "count_most_in_flight",
    "export_trace",
    "get_order",
    "order_1f1b",
    "order_forward",
    "order_gpipe",
    "order_interleaved",
    "order_zero_bubble",
    "play_stages",
    "simulate",
    "simulate_schedule",
]
