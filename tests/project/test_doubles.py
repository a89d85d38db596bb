"""Two ids of one form are refused, unless they are one person, or were said to be two."""

import numpy as np
import pytest

from labelguard.errors import InvalidLabels
from labelguard.keys.identities import Identities
from labelguard.ledger.records import UnitGroups
from labelguard.project.linking import refuse_doubles


def keys(*numbers):
    return np.array([[number, 0] for number in numbers], np.uint64).reshape(-1, 2)


def people(**forms):
    """Labelers by name, each with a key of its own (one=1, …) and the form that is given."""
    own = [("one", "two", "three").index(name) + 1 for name in forms]
    return Identities(keys(*own), keys(*forms.values()), tuple(forms))


NOBODY = people()
NO_GROUPS, NOBODY_DISTINCT = UnitGroups(keys(), keys()), (keys(), keys())


def test_two_of_one_form_are_refused_where_one_of_them_is_in_the_input():
    for found, known in (
        (people(one=9, two=9), NOBODY),
        (people(one=9), people(two=9)),
        (people(two=9), people(one=9, three=8)),
    ):
        with pytest.raises(InvalidLabels, match="differ only in how they are written"):
            refuse_doubles(found, known, NO_GROUPS, NOBODY_DISTINCT)
    refuse_doubles(people(one=9), people(one=9, two=8), NO_GROUPS, NOBODY_DISTINCT)
    refuse_doubles(people(three=8), people(one=9, two=9), NO_GROUPS, NOBODY_DISTINCT)


def test_who_was_said_to_be_two_people_is_two_and_of_a_third_nothing_was_said():
    for distinct in ((keys(1), keys(2)), (keys(2), keys(1))):
        refuse_doubles(people(one=9, two=9), NOBODY, NO_GROUPS, distinct)
        refuse_doubles(people(one=9), people(two=9), NO_GROUPS, distinct)
        with pytest.raises(InvalidLabels, match="'three'"):
            refuse_doubles(people(three=9), people(one=9, two=9), NO_GROUPS, distinct)


def test_who_shares_a_unit_is_one_person():
    groups = UnitGroups(keys(1, 2), keys(7, 7))
    refuse_doubles(people(one=9, two=9), NOBODY, groups, NOBODY_DISTINCT)
    refuse_doubles(people(two=9), people(one=9), groups, NOBODY_DISTINCT)
    with pytest.raises(InvalidLabels, match="'three'"):
        refuse_doubles(people(three=9), people(one=9), groups, NOBODY_DISTINCT)
