"""When a preemption was for nothing: its victims went, and foreign load took their room before the waiter could start
(DESIGN §5). Says how long the pool then preempts nobody; that its victims stand first in line is `policies.plan`'s.
"""

from policies.settings import PolicySettings


def pause_ms(*, preempted: bool, no_room: bool, foreign: bool, settings: PolicySettings) -> int:
    """For how long the pools of a waiter that did not start preempt nobody; 0: nothing was stolen.

    preempted: others made way for it, all of them are gone, and it never ran. no_room: the backend had none for it.
    foreign: use without a tag of ours lies where it was to run; else room is short for reasons of our own.
    """
    return settings.lost_preemption_pause_ms if preempted and no_room and foreign else 0
