"""The client repeats the server's words and never means another thing by them."""

from enum import Enum, EnumType

import pytest

from policies import vocabulary
from tidegate.wire import enums

PAIRS = [
    name
    for name, member in vars(enums).items()
    if isinstance(member, EnumType)
    and hasattr(vocabulary, name)
    and name != "Role"
    and member.__module__ == enums.__name__
]


def values(kind: type[Enum]) -> dict[str, object]:
    return {member.name: member.value for member in kind}


@pytest.mark.parametrize("name", PAIRS)
def test_a_word_on_the_wire_is_a_word_of_the_core(name: str) -> None:
    assert values(getattr(enums, name)) == values(getattr(vocabulary, name))


def test_the_words_that_users_see_are_all_compared() -> None:
    assert {"JobKind", "PriorityClass", "JobState", "AttemptState", "CapacityType", "Resource", "Launcher"} <= set(
        PAIRS
    )


def test_roles_are_the_same_in_the_same_order() -> None:
    assert [role.value for role in enums.Role] == [role.name.lower() for role in sorted(vocabulary.Role)]


def test_wire_ends_are_the_ends_of_the_state_table() -> None:
    from policies.states import LIVE_JOB_STATES

    assert {state.value for state in enums.ENDED} == {s.value for s in vocabulary.JobState if s not in LIVE_JOB_STATES}
