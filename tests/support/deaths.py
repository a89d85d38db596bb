"""A command that is killed in the middle: in this process, which goes on."""

import contextlib
import itertools

import pytest


class Killed(BaseException):
    """The end of a process, but for the process."""


@contextlib.contextmanager
def killed_in(owner, name, *, call=1, late=False, here=lambda *_, **__: True):
    """Whoever calls this function dies: before it does anything, or `late`, once it has.

    In the call of that number among those of whose arguments `here` says so. Somebody must die
    before the context is left.
    """
    whole, calls = getattr(owner, name), itertools.count(1)

    def fatal(*arguments, **options):
        dies = here(*arguments, **options) and next(calls) == call
        done = whole(*arguments, **options) if late or not dies else None
        if dies:
            raise Killed
        return done

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr(owner, name, fatal)
        yield
