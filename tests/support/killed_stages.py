"""`labelguard` in a process that is killed while PROPS trains language models."""

import multiprocessing
import os

MOMENTS = ("inside stage 1", "before stage 1 is recorded", "after stage 1", "inside stage 2")

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["labelguard_trainer.training.stages", "labelguard.cli.main"])


def killed(moment, directory, arguments):
    """Exit code of the command in `directory`, killed at one of `MOMENTS`."""
    process = _context.Process(target=_run, args=(moment, directory, arguments, dict(os.environ)))
    process.start()
    process.join()
    assert process.exitcode is not None
    return process.exitcode


def _run(moment, directory, arguments, environment):
    os.environ.update(environment)  # the server's are those of the first test
    from labelguard_trainer.training import stages
    from support.crashing import die_after

    from labelguard.cli.main import main
    from labelguard.release.mechanisms import props

    os.chdir(directory)
    if moment.startswith("inside"):
        stage = moment.removeprefix("inside stage ")
        die_after(stages, "mark_complete", lambda path: f"model-{stage}-" in str(path))
    elif moment == "after stage 1":
        die_after(props, "write_atomically", lambda path, *_: path.name.startswith("stage="))
    else:
        die_after(stages, "publish_directory", lambda finished, path: True)
    main(arguments, standalone_mode=False)
