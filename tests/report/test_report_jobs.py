"""What the report tells of jobs: runs, how models were judged, and how the newest one learnt."""

from support.job_runs import ran, remember

import labelguard as lg
from labelguard.project.runs import HISTORY
from labelguard.report.figures import describe_job
from labelguard.report.page import report

LIKELIHOOD = {"by": "held-out", "measure": "log-likelihood per label", "candidate": -0.759}
LIKELIHOOD |= {"current": -0.761, "rows": 300}


def test_jobs_and_how_their_models_learnt(tmp_path):
    project = lg.init(tmp_path)
    runs = [ran(1), ran(2, outcome="kept", model=None), ran(3, outcome="failed", why="disk full")]
    remember(project, *runs)
    document = {one.id: one for one in report(project=project).sections}
    job, curve = document["job-nightly"], document["curve-nightly"]
    assert job.alert == "The newest run of nightly failed: disk full"
    assert [row[2] for row in job.table.rows] == ["failed", "kept", "promoted"]  # type: ignore[union-attr]
    assert job.chart and job.chart.series[0].values == (0.61, 0.62, 0.63)
    assert curve.chart and curve.chart.series[0].values == (0.69, 0.5)
    assert curve.chart.message == "loss goes from 0.69 to 0.5 in 2 points."
    path = project.jobs / "nightly" / HISTORY
    path.write_text("{}\n" + path.read_text())
    [unread] = [one for one in report(project=project).sections if one.id == "jobs"]
    assert "line 1, is no run of a job" in unread.alert


def run_without_promotion(number, **judged):
    """A run whose candidate was not better."""
    settings = {"step": "head", "options": {"windows": 8}}
    judgement, outcome = LIKELIHOOD | judged, judged.pop("outcome", "kept")
    return ran(number, outcome=outcome, judgement=judgement, curve=[], settings=settings)


def section_of(*runs):
    return describe_job("nightly", runs)


def test_a_model_worse_than_a_coin_is_called_that():
    part = section_of(run_without_promotion(1), run_without_promotion(2))
    chart = part.chart
    assert chart
    assert "Run 2: the candidate has log-likelihood per label -0.759" in chart.message
    assert "the model in use -0.761: not promoted" in chart.message
    assert "candidate (-0.759) and the model in use (-0.761) of the newest" in part.text[1]
    assert part.text[1].endswith("are below a coin (-0.693): guessing is better.")
    [mark] = chart.marks
    assert (mark.axis, round(mark.at, 3), mark.text) == ("y", -0.693, "a coin")
    better = {"candidate": -0.6, "current": -0.7}
    part = section_of(run_without_promotion(1), run_without_promotion(2, **better))
    assert "the model in use (-0.700) of the newest judgement is below a coin" in part.text[1]
    assert (
        len(
            section_of(
                run_without_promotion(1), run_without_promotion(2, **better | {"current": None})
            ).text
        )
        == 1
    )
